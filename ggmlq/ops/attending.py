"""Operands of attention, checked: queries, keys, values, and all that says which positions a query sees."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import array_of, is_tensor
from ..base import text
from ..base.devices import device_of, is_host, namespace
from ..dispatch.checks import as_array, as_floats, check_flag, finite
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError

SHAPES = "q is [B, H, T, D], k [B, HK, S, D] and v [B, HK, S, DV], H a multiple of HK"


class Attention(NamedTuple):
    """The operands of a call."""

    q: Any  # floats [B, H, T, D]
    k: Any  # QuantArray, ScaledArray or floats [B, HK, S, D]
    v: Any  # the same [B, HK, S, DV]
    scale: float
    causal: bool
    mask: Any  # bool or floats that broadcast to [B, H, T, S], or None
    lengths: Any  # int64 [B]: positions that there are; on the host or a GPU
    window: int  # positions that a query sees up to its own; 0 for all
    softcap: float
    sinks: Any  # floats [H], or None
    slopes: NDArray[np.float64] | None  # [H]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.q.shape[:3], self.v.shape[3])


def checked(
    request: str, q: Any, k: Any, v: Any, scale: float | None = None, causal: bool = False, mask: Any = None,
    lengths: Any = None, window: int | None = None, softcap: float = 0.0, sinks: Any = None,
    alibi: Any = 0.0,
) -> Attention:  # fmt: skip
    """The checked operands; all lie on one device."""
    q = as_floats(request, array_of(request, q, "q") if is_tensor(q) else q, "q", bfloat16=True)
    k, v = (_rows(request, rows, name) for rows, name in ((k, "k"), (v, "v")))
    _check_shapes(request, q.shape, k.shape, v.shape)
    places = {name: _device(one) for name, one in (("q", q), ("k", k), ("v", v))}
    if len({*places.values()}) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise DeviceError(
            f"{request}: {where}; all are on one device; move arrays with .to(…), cupy.asarray or .get()"
        )
    batch, heads, queries, width = q.shape
    positions = k.shape[2]
    check_flag(request, "causal", causal)
    scale = 1 / math.sqrt(width) if scale is None else _number(request, "scale", scale)
    return Attention(
        q, k, v, scale, bool(causal), _mask(request, mask, (batch, heads, queries, positions), places["q"]),
        _lengths(request, lengths, batch, positions, places["q"]), _window(request, window, positions),
        _number(request, "softcap", softcap, 0),
        by_head(request, sinks, heads, "sinks", "logit", places["q"]),
        slopes_of(request, alibi, heads, places["q"]),
    )  # fmt: skip


def _number(request: str, name: str, number: Any, least: float = -math.inf) -> float:
    value = finite(number)
    if value is None or value < least:
        rule = "a finite number" if least else "a finite number from 0 on, 0 for none"
        raise DTypeError(f"{request}: {name} is {text.short(number)}; it is {rule}; pass {name}=0.5")
    return value


def _window(request: str, window: Any, positions: int) -> int:
    """The positions that a query sees up to its own, no more than there are; 0 for all."""
    if window is None:
        return 0
    number = finite(window)
    if isinstance(window, bool) or number is None or not 1 <= number < 2**63 or number % 1:
        raise DTypeError(
            f"{request}: window is {text.short(window)}; it is a number of positions from 1 to 2**63 - 1, or "
            "None for all; pass 512"
        )
    return min(int(number), max(positions, 1))


def _check_place(request: str, name: str, x: Any, place: str) -> None:
    """Refuse an array on a GPU where the queries are not; one on the host goes there with them."""
    if device_of(x) not in ("cpu", place):
        raise DeviceError(
            f"{request}: {name} on {device_of(x)}, q on {place}; both are on one device; pass {name}.get()"
        )


def by_distance(a: Attention) -> Attention:
    """The operands as kernels take them: where later positions are seen, ALiBi's distances are a mask.

    By themselves kernels add slope times (position - own), which would favour later ones.
    """
    if a.slopes is None or a.mask is not None or a.causal or a.window:
        return a
    xp, queries, positions = namespace(a.lengths), a.q.shape[2], a.k.shape[2]
    lengths = a.lengths if not is_host(a.lengths) or len({*a.lengths.tolist()}) > 1 else a.lengths[:1]
    places = xp.minimum(lengths, positions)[:, None] - queries + xp.arange(queries)
    mask = xp.arange(positions, dtype=np.float32) - places[:, None, :, None].astype(np.float32)
    return a._replace(mask=-abs(mask))


def _rows(request: str, rows: Any, name: str) -> Any:
    if isinstance(rows, QuantArray) and rows.scale is not None:  # kernels read blocks alone
        return rows.dequantize()
    if isinstance(rows, QuantArray | ScaledArray):
        return rows
    return as_floats(request, array_of(request, rows, name) if is_tensor(rows) else rows, name, bfloat16=True)


def _device(rows: Any) -> str:
    return rows.device if isinstance(rows, QuantArray | ScaledArray) else device_of(rows)


def _check_shapes(request: str, q: Any, k: Any, v: Any) -> None:
    if not len(q) == len(k) == len(v) == 4:
        way = "add axes with [None], or reshape k.reshape(B, HK, S, D)"
        raise ShapeError(f"{request}: shapes are q {q}, k {k}, v {v}; {SHAPES}; {way}")
    alike = q[0] == k[0] and k[:3] == v[:3] and q[3] == k[3]
    if not alike or not k[1] or q[1] % k[1] or not q[3]:
        raise ShapeError(f"{request}: shapes are q {q}, k {k}, v {v}; {SHAPES}; pass shapes that agree")


def _lengths(request: str, lengths: Any, batch: int, positions: int, place: str) -> Any:
    """The number of positions of each sequence: on the host, or where the caller has them."""
    if lengths is None:
        return np.full(batch, positions, np.int64)
    numbers = as_array(request, lengths, "lengths", "integers")
    if numbers.shape != (batch,) or numbers.dtype.kind not in "iu":
        raise ShapeError(
            f"{request}: lengths are {numbers.dtype} {numbers.shape}; there is one integer for each of "
            f"{batch} sequences; pass np.array([…])"
        )
    if not is_host(lengths):
        if device_of(lengths) == place:  # nobody waits for the device to look at them
            return lengths.astype(np.int64, copy=False)
        numbers = lengths.get()
    numbers = numbers.astype(np.int64)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() <= positions):
        raise BlockIndexError(
            f"{request}: lengths are {numbers.tolist()}; k has {positions} positions; a length is from 0 "
            "to that; correct them"
        )
    return np.ascontiguousarray(numbers)


def _mask(request: str, mask: Any, shape: tuple[int, ...], place: str) -> Any:
    if mask is None:
        return None
    mask = mask if hasattr(mask, "dtype") else as_array(request, mask, "mask", "floats or bools")
    if getattr(getattr(mask, "dtype", None), "kind", "") != "b":
        mask = as_floats(request, array_of(request, mask, "mask") if is_tensor(mask) else mask, "mask")
    try:
        np.broadcast_to(np.empty(mask.shape, "V0"), shape)
    except ValueError:
        raise ShapeError(
            f"{request}: the mask has shape {mask.shape}, scores {shape}; it is broadcast to [B, H, T, S]; "
            "pass mask[:, None] for one of each sequence"
        ) from None
    _check_place(request, "mask", mask, place)
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


def by_head(request: str, numbers: Any, heads: int, name: str, word: str, place: str) -> Any:
    """Numbers [H] as floats, or None."""
    if numbers is None:
        return None
    numbers = as_floats(request, numbers, name)
    if numbers.shape != (heads,):
        raise ShapeError(
            f"{request}: {name} have shape {numbers.shape}; there is one {word} for each of {heads} heads of "
            f"q; pass shape ({heads},)"
        )
    _check_place(request, name, numbers, place)
    return numbers


def slopes_of(request: str, alibi: Any, heads: int, place: str) -> NDArray[np.float64] | None:
    """The slopes of ALiBi on the host, by its largest bias or as they are."""
    alibi = as_array(request, alibi, "alibi's slopes", "floats")
    if alibi.ndim:
        numbers = by_head(request, alibi, heads, "alibi's slopes", "slope", place)
        return np.asarray(numbers if is_host(numbers) else numbers.get(), np.float64)
    most = _number(request, "alibi", alibi, 0)
    return slopes(heads, most) if most else None


def slopes(heads: int, most: float) -> NDArray[np.float64]:
    """The slope of each head under ALiBi with a largest bias of ``most``, as ggml has them; ones for 0."""
    if not most:
        return np.ones(heads)
    low = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-most / low), 2.0 ** (-most / 2 / low)
    return np.array([first ** (h + 1) if h < low else second ** (2 * (h - low) + 1) for h in range(heads)])
