"""The float arrays of one direction of a GRU, checked once, gates in the order z, r, g."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, DTypeError, NonFiniteError, ShapeError
from ..ops.door import Operand, operand
from .torch import from_torch_order

Floats = NDArray[Any]


class Weights(NamedTuple):
    """The arrays of one direction."""

    W: Floats  # [3H, C]
    R: Floats  # [3H, H]
    bx: Floats  # [3H]
    br: Floats  # [3H]

    @property
    def inputs(self) -> int:
        """The number of inputs, C."""
        return int(self.W.shape[1])

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.R.shape[1])

    def digest(self) -> bytes:
        """A digest that tells these numbers from others."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self:
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.digest()


def weights_of(request: str, parts: Sequence[Any], order: str) -> Weights:
    """Checked arrays W, R, bx, br of a direction; biases left out are zeros."""
    W, R, bx, br = parts
    W, R = floats(request, W, "W"), floats(request, R, "R")
    if W.ndim != 2 or R.ndim != 2 or R.shape[0] != 3 * R.shape[1] or W.shape[0] != R.shape[0]:
        raise ShapeError(
            f"{request}: W has shape {W.shape}, R {R.shape}; they are [3H, C] and [3H, H], one row an "
            "output of each of the three gates; transpose them or stack the gates"
        )
    if not W.shape[1] or not R.shape[1]:
        raise ShapeError(f"{request}: W has shape {W.shape}, R {R.shape}; C and H are at least 1")
    arrays = [W, R]
    for name, stored in (("bx", bx), ("br", br)):
        bias = np.zeros(len(W), W.dtype) if stored is None else floats(request, stored, name)
        if bias.shape != (len(W),):
            raise ShapeError(
                f"{request}: {name} has shape {bias.shape}; a bias is one value a row of W; pass "
                f"({len(W)},), or leave it out"
            )
        arrays.append(bias)
    if order == "rzn":
        arrays = [from_torch_order(part) for part in arrays]
    return Weights(*(np.array(part, order="C") for part in arrays))


def seen(request: str, x: Any, name: str) -> Operand:
    """Floats of a caller as an operand; one that was seen before stays as it is."""
    if x is None or isinstance(x, str | bytes | dict):
        raise DTypeError(f"{request}: {name} is {type(x).__name__}; pass an array of floats")
    return x if isinstance(x, Operand) else operand(request, x, name)


def floats(request: str, x: Any, name: str, device: str = "cpu") -> Floats:
    """A finite array of float32 or float64 on the host; on a device the kernels find values that are not."""
    floats = seen(request, x, name)
    if device == "cpu" and not floats.on_host:
        raise DeviceError(f"{request}: {name} is on a device; a GRU is made on the host; pass {name}.get()")
    if floats.device != device:
        raise DeviceError(
            f"{request}: {name} is on {floats.device}, the GRU on {device}; both must be on one device; pass "
            f"cupy.asarray({name})"
        )
    x = floats.array
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    if x.dtype.byteorder not in "=|":
        x = x.astype(x.dtype.newbyteorder("="))
    if device == "cpu":
        refuse_not_finite(request, x, name)
    checked: Floats = x
    return checked


def refuse_not_finite(request: str, x: Any, name: str) -> None:
    """Raise an error that names the first value that is not finite, if there is one."""
    finite = np.isfinite(x)
    if not finite.all():
        at = [int(i) for i in np.argwhere(~finite)[0]]
        raise NonFiniteError(
            f"{request}: {name}{at} is {x[tuple(at)]}; a GRU is calibrated and run on finite numbers; clear "
            "them with np.nan_to_num"
        )


# --- Inputs and initial states of a GRU, float or fixed: their shapes, checked with errors in words ---


def inputs(request: str, x: Any, channels: int, batch_first: Any, device: str = "cpu") -> Floats:
    """The array x as [T, N, C]."""
    if not isinstance(batch_first, bool | np.bool_):
        raise DTypeError(
            f"{request}: batch_first is {batch_first!r}; it is True ([N, T, C]) or False ([T, N, C])"
        )
    x = floats(request, x, "x", device)
    if x.ndim != 3 or x.shape[2] != channels:
        way = f"[N, T, {channels}]" if batch_first else f"[T, N, {channels}]"
        raise ShapeError(
            f"{request}: x has shape {x.shape}; this GRU takes {way} with batch_first={bool(batch_first)}; "
            "reshape it, one sequence as x[:, None]"
        )
    sequences: Floats = x.swapaxes(0, 1) if batch_first else x
    return sequences


def states(
    request: str, h0: Any, directions: int, n: int, units: int, device: str = "cpu"
) -> list[Floats] | None:
    """The array h0 as a list of [N, H], one for each direction; None stays None."""
    if h0 is None:
        return None
    h0 = floats(request, h0, "h0", device)
    rule = (directions, n, units)
    if h0.shape != rule and (directions != 1 or h0.shape != rule[1:]):
        short = rule[1:] if directions == 1 else rule
        raise ShapeError(
            f"{request}: h0 has shape {h0.shape}; states are {short}, one row a sequence; pass that, or "
            "None for zeros"
        )
    return list(h0.reshape(rule))
