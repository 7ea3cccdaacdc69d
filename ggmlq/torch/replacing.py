"""``quantize_``: layers of a model become packed ones, from their floats.

One tensor at a time: memory is never above what the packed model takes and one tensor of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from ..base.progress import Progress
from .blocks import file_bytes
from .modules import Embedding, Experts, Linear, Packed, ScaledEmbedding, is_scaled

# --- names --------------------------------------------------------------------------------------

Patterns = str | Callable[[str], bool] | Iterable[str] | None
Names = Mapping[str, str] | Callable[[str], str | None] | None  # of parameters, by names in a file


def matches(name: str, include: Patterns, exclude: Patterns) -> bool:
    """True for a name that ``include`` picks (None picks all) and ``exclude`` does not (None picks none)."""
    return (include is None or _picks(include, name)) and not (exclude is not None and _picks(exclude, name))


def _picks(patterns: Patterns, name: str) -> bool:
    if callable(patterns):
        return bool(patterns(name))
    single = isinstance(patterns, str) or not isinstance(patterns, Iterable)
    several: list[Any] = [patterns] if single else list(patterns)  # type: ignore[arg-type]
    if not all(isinstance(pattern, str) for pattern in several):
        raise gq.errors.DTypeError(
            f"patterns {several!r:.100}: they are str with *, ? and […], as in file names, or a function of "
            'a name; pass "*.mlp.*" or ["*.q_proj", "*.v_proj"]'
        )
    return any(fnmatchcase(name, pattern) for pattern in several)


def check_model(request: str, model: Any) -> None:
    """Refuse what is no module of torch."""
    if not isinstance(model, torch.nn.Module):
        raise gq.errors.DTypeError(
            f"{request}: the model is {model!r:.80}; it is a torch.nn.Module; pass the module itself"
        )


def check_names(names: Names) -> None:
    """Refuse names that lead nowhere."""
    if not (names is None or callable(names) or isinstance(names, Mapping)):
        raise gq.errors.DTypeError(
            f"load_(model, file, names={names!r:.80}): names are a mapping of the file's names to those of "
            'parameters, or a function; pass {"blk.0.ffn_up.weight": "layers.0.up.weight"}'
        )


# --- layers -------------------------------------------------------------------------------------


@dataclass
class Replaced:
    """The outcome: names of layers that are packed now, with their types, and of others, with reasons."""

    taken: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.taken)} layers packed, {len(self.left)} left"]
        lines += [f"  {name}: {kind}" for name, kind in self.taken.items()]
        return "\n".join(lines + [f"  {name}: left, {why}" for name, why in self.left.items()])


def quantize_(
    model: torch.nn.Module, type: Any, *, include: Patterns = None, exclude: Patterns = None,
    imatrix: Mapping[str, Any] | None = None, progress: bool | None = None,
) -> Replaced:  # fmt: skip
    """Quantize the layers of a model in place: ``torch.nn.Linear`` and ``torch.nn.Embedding`` become packed.

    Parameters
    ----------
    model : torch.nn.Module
        On any device; packed layers come to the device of the floats.
    type : str, int or Format
        As in :func:`ggmlq.quantize`, with the same bytes.
    include, exclude : str, list of str, or callable
        Names of layers: patterns with ``*``, ``?`` and ``[…]``, or a function of a name. All by default.
    imatrix : mapping, optional
        Importance of columns [K] by the name of a layer, with or without ``.weight``.
    progress : bool, optional
        True shows a bar, False none; otherwise there is one on a terminal if it takes long.

    Returns
    -------
    Replaced
        ``taken`` and ``left``, which also says why: rows that are no whole blocks, names that were excluded.
    """
    check_model(f"quantize_(model, {type!r:.40})", model)
    fmt, result = gq.formats[type], Replaced()
    layers = {name: _bytes_of(part) for name, part in model.named_modules() if _is_floats(part)}
    _check_imatrix(model, fmt, layers, imatrix)
    ties = {
        name.removesuffix(".weight"): other.removesuffix(".weight") for name, other in ties_of(model).items()
    }
    with Progress(sum(layers.values()), f"quantizing to {fmt.name}", show=progress) as bar:
        for name, size in layers.items():
            part = model.get_submodule(name)
            if reason := _reason(name, part, fmt, include, exclude):
                result.left[name] = reason
            else:
                tied = model.get_submodule(ties[name]) if ties.get(name) in result.taken else None
                known = tied if isinstance(tied, Packed) else None
                blocks = known if known is not None else _quantized(name, part, fmt, imatrix)
                put_module(model, name, packed_layer(part, blocks))
                result.taken[name] = fmt.name
            del part  # its floats go before the next layer's blocks come
            bar.advance(size)
    for name, part in model.named_modules():
        if isinstance(part, Packed) and name not in result.taken:
            result.left[name] = f"it is packed already, in {part.format.name}"
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() > 1 and parameter.dtype.is_floating_point
        if matrix and name.rpartition(".")[0] not in layers:
            result.left[name] = "it is no weight of a torch.nn.Linear or torch.nn.Embedding"
    return result


def _bytes_of(part: Any) -> int:
    return int(part.weight.numel() * part.weight.element_size())


def _is_floats(part: torch.nn.Module) -> Any:
    return type(part) in (torch.nn.Linear, torch.nn.Embedding)


def _reason(name: str, part: Any, fmt: Any, include: Patterns, exclude: Patterns) -> str:
    """The reason why a layer stays as it is; empty where there is none."""
    if not matches(name, include, exclude):
        return "its name was not picked"
    if part.weight.device.type == "meta":
        raise gq.errors.DeviceError(
            f"quantize_(model, {fmt.name!r}): {name} is on the device meta, which has no numbers; load its "
            "weights first, or fill the model with ggmlq.torch.load_"
        )
    k = part.weight.shape[1]
    if k % fmt.block_size:
        return f"its rows have {k} numbers, blocks of {fmt.name} hold {fmt.block_size}"
    return "its max_norm changes rows that are read" if getattr(part, "max_norm", None) is not None else ""


def _check_imatrix(model: Any, fmt: Any, layers: Any, imatrix: Mapping[str, Any] | None) -> None:
    """Refuse importance that has no layer, or another number of columns than its layer."""
    for key, values in ({} if imatrix is None else imatrix).items():
        name, request = key.removesuffix(".weight"), f"quantize_(model, {fmt.name!r}, imatrix=)"
        if name not in layers:
            if name in dict(model.named_modules()):
                continue  # a layer that stays as it is, or is packed already
            raise gq.errors.ImportanceError(
                f"{request}: the model has no layer {name!r}; its layers are {', '.join(list(layers)[:5])}"
                f"{' …' * (len(layers) > 5)}; pass importance by their names"
            )
        shape, k = np.shape(values), model.get_submodule(name).weight.shape[1]
        if shape != (k,):
            raise gq.errors.ImportanceError(
                f"{request}: {name!r} has importance of shape {shape}; its rows have {k} numbers; pass ({k},)"
            )


def _quantized(name: str, part: Any, fmt: Any, imatrix: Mapping[str, Any] | None) -> gq.QuantArray:
    importance = None
    if imatrix is not None:
        importance = imatrix.get(name, imatrix.get(f"{name}.weight"))
    floats = part.weight.detach()
    return gq.quantize(floats.float() if floats.dtype == torch.bfloat16 else floats, fmt, importance)


def packed_layer(part: Any, source: gq.QuantArray | Packed) -> Packed:
    """The packed layer in place of one of floats, or of a packed one; its bias stays.

    ``source``: its blocks, or a layer that has them too.
    """
    blocks = source if isinstance(source, gq.QuantArray) else _view(source)
    if isinstance(part, torch.nn.Linear):
        new: Packed = Linear(blocks, part.bias)
    elif isinstance(part, Experts):
        new = Experts(blocks, part.bias)
    else:
        dtype = (part._like if isinstance(part, Embedding) else part.weight).dtype
        new = ScaledEmbedding(blocks, dtype, part) if is_scaled(part) else Embedding(blocks, dtype)
    if isinstance(source, Packed):  # tied weights stay one, in the order that both read
        if not (new.strips and source.strips):
            source.weight.data = file_bytes(source.weight.data, source.blocks_type, source.blocks_shape)
            new.strips = source.strips = False
        new.weight = source.weight
    return new.train(part.training)


def _view(layer: Packed) -> gq.QuantArray:
    """The blocks of a layer as an array, for another layer with the same."""
    raw = file_bytes(layer.weight.detach(), layer.blocks_type, layer.blocks_shape)
    scale = None if layer.scale is None else layer.scale.cpu().numpy()
    host = raw.numpy() if raw.device.type == "cpu" else raw.cpu().numpy()
    return gq.QuantArray.from_bytes(host, layer.ggml_type, layer.blocks_shape, scale)


def put_module(model: torch.nn.Module, name: str, part: torch.nn.Module) -> None:
    if not name:
        raise gq.errors.UnsupportedError(
            "quantize_(model, …): the model is a single layer, which cannot be replaced in itself; make one "
            "with ggmlq.torch.Linear(gq.quantize(layer.weight, …), layer.bias)"
        )
    model.set_submodule(name, part)


def ties_of(model: torch.nn.Module) -> dict[str, str]:
    """Names of parameters that are another one, by that one's name: tied weights."""
    first: dict[int, str] = {}
    ties = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            ties[name] = other
    return ties
