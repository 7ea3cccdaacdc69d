"""The weights of a torch.nn.GRU, or of any object with its attributes; torch is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import DTypeError, ShapeError, UnsupportedError

PARTS = {"W": "weight_ih_l", "R": "weight_hh_l", "bx": "bias_ih_l", "br": "bias_hh_l"}


def read_module(module: Any, layer: int) -> dict[str, Any]:
    """The arguments of ``GRU`` from a module, gates in PyTorch's order."""
    request = "GRU.from_torch(module)"
    layers = getattr(module, "num_layers", 1)
    if not isinstance(layer, int) or not 0 <= layer < layers:
        raise UnsupportedError(
            f"{request}: layer={short(layer)}; the module has {layers} layers; pass 0 to {layers - 1}, and "
            "run one GRU a layer, y of one as x of the next"
        )
    if getattr(module, "proj_size", 0):
        raise UnsupportedError(
            f"{request}: the module has proj_size={module.proj_size}, which only LSTMs have"
        )
    state = module.state_dict() if callable(getattr(module, "state_dict", None)) else {}
    suffixes = [f"{layer}", f"{layer}_reverse"] if getattr(module, "bidirectional", False) else [f"{layer}"]
    arrays: dict[str, Any] = {}
    for name, stem in PARTS.items():
        parts = [_part(request, module, state, stem + ending, name) for ending in suffixes]
        if name in ("bx", "br") and any(part is None for part in parts):
            arrays[name] = None
        else:
            arrays[name] = tuple(parts) if len(parts) > 1 else parts[0]
    rows = arrays["W"][0].shape if len(suffixes) > 1 else arrays["W"].shape
    hidden = (arrays["R"][0] if len(suffixes) > 1 else arrays["R"]).shape
    if hidden[0] != 3 * hidden[1] or rows[0] != hidden[0]:
        raise UnsupportedError(
            f"{request}: {type(module).__name__} has weights of shape {tuple(rows)} and "
            f"{tuple(hidden)}; those of a GRU are [3H, C] and [3H, H]; is it an LSTM?"
        )
    return arrays


def _part(request: str, module: Any, state: Any, key: str, name: str) -> Any:
    tensor = state[key] if key in state else getattr(module, key, None)
    if tensor is None:
        if name in ("bx", "br"):
            return None
        raise DTypeError(
            f"{request}: {type(module).__name__} has no {key}; a torch.nn.GRU has "
            f"{', '.join(PARTS.values())} and a number; pass such a module"
        )
    tensor = tensor.detach() if hasattr(tensor, "detach") else tensor
    return tensor.cpu() if hasattr(tensor, "cpu") else tensor


# --- The orders of gates along 3H: z, r, g here and in ONNX; r, z, g in PyTorch, whose g is called n ---

ORDERS = ("zrg", "rzn")


def to_torch_order(a: Any) -> NDArray[Any]:
    """An array [3H, …] in the order z, r, g in PyTorch's order.

    >>> to_torch_order([1, 2, 3]).tolist()
    [2, 1, 3]
    """
    a = np.asarray(a)
    if not a.ndim or len(a) % 3:
        raise ShapeError(
            f"order of gates: the array has shape {a.shape}; its first axis is three gates of H rows each; "
            "pass [3H, …]"
        )
    first, second, third = np.split(a, 3)
    return np.concatenate([second, first, third])


from_torch_order = to_torch_order  # the first two thirds change places either way


def checked_order(request: str, order: Any) -> str:
    """The order of gates, if it is a known one; else an error."""
    if order not in ORDERS:
        raise UnsupportedError(
            f'{request}: order={short(order)}; gates lie as "zrg" (update, reset, new: ONNX, Haste) or "rzn" '
            "(PyTorch); pass one of these"
        )
    return str(order)
