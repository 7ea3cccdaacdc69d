"""The rule by which every quantizer turns floats into codes with scales, on whole NumPy arrays.

A tile of x, in float32:

    amax = max |x|                    s = max(amax, eps) / max           q = code(x / s)

and with a zero point, where the range is low … high and 0.0 must have a code of its own:

    s = max(max(x, 0) - min(x, 0), eps) / (high - low)
    z = round(low - min(x, 0) / s)                                       q = round(x / s) + z

Divisions are IEEE divisions and their order is this, so that all devices agree to the bit. NaN is left
out of max and min where the code has one of its own. Integers have none: there the scale of its tile is NaN,
0x7FC00000, z is 0 (or the code nearest to it), and all codes are z. Under scales of the caller NaN becomes
the code of 0.0, which is z. A scale e8m0 is s rounded up to a power of two, before anything is divided by it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import CODES
from .code import Code
from .integers import Integer, rounded
from .tiling import Tiling, expanded

Floats = NDArray[np.float32]
STEP = 1 << 18  # elements at a time


class Rule(NamedTuple):
    """The rule by which floats become codes."""

    code: Code
    scale: str  # "float32" or "e8m0"
    eps: np.float32
    rounding: str
    zeros: bool
    order: str = "rows"

    @property
    def keeps_nan(self) -> bool:
        """True if the code has no NaN, so that a NaN in a tile makes the tile's scale NaN."""
        return self.code.kind == "integer"


class Quantized(NamedTuple):
    """A matrix as codes, with scales and zero points of its tiles."""

    codes: NDArray[Any]  # [rows, columns]
    scales: NDArray[Any]  # float32 or e8m0, one a tile
    zeros: NDArray[np.int32] | None


def stored(scales: Floats, scale: str) -> NDArray[Any]:
    """Scales as a ScaledArray stores them: float32, or e8m0 rounded up."""
    return scales if scale == "float32" else CODES["e8m0"].encode(scales)


def values(scales: Any) -> Any:
    """Scales as float32, however they are stored."""
    return CODES["e8m0"].decode(scales) if scales.dtype == np.uint8 else scales


def empty(xp: Any, shape: tuple[int, ...], dtype: Any, order: str = "rows") -> Any:
    """Room for scales; in the order "columns" they run down columns, each of a multiple of 16 bytes."""
    if order == "rows":
        return xp.empty(shape, dtype)
    rows, columns = shape
    whole = 16 // np.dtype(dtype).itemsize
    padded = -(-rows // whole) * whole
    make = xp.empty if padded == rows else xp.zeros
    return make((columns, padded), dtype).T[:rows]


def laid_out(xp: Any, like: Any, copy: Any) -> Any:
    """A copy of scales in the order of the original ones."""
    if like.ndim != 2 or like.size < 2 or like.strides[0] >= like.strides[1]:
        return copy
    copied = empty(xp, copy.shape, copy.dtype, "columns")
    copied[...] = copy
    return copied


def quantize(x: NDArray[Any], over: Tiling, rule: Rule) -> Quantized:
    """Floats [rows, columns] to codes, scales and zero points."""
    scales = empty(np, over.shape, np.float32 if rule.scale == "float32" else np.uint8, rule.order)
    zeros = empty(np, over.shape, np.int32, rule.order) if rule.zeros else None
    with np.errstate(all="ignore"):
        scales[...], points = scales_of(*_extremes(x, over, rule.zeros, rule.keeps_nan), rule)
    if zeros is not None:
        zeros[...] = points
    return Quantized(encode(x, over, rule, scales, zeros), scales, zeros)


def scales_of(low: Floats, high: Floats, rule: Rule) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """Stored scales, and zero points, of tiles with these extremes."""
    span = high - low if rule.zeros else high
    steps = np.float32(rule.code.max - (rule.code.min if rule.zeros else 0))
    span = np.where(np.isnan(span), np.float32(np.nan), np.fmax(span, rule.eps))
    scales = stored(np.asarray(span / steps, np.float32), rule.scale)
    return scales, zero_points(low, values(scales), rule) if rule.zeros else None


def zeros_of(x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any]) -> NDArray[np.int32]:
    """The zero points of tiles under scales that the caller passes."""
    with np.errstate(all="ignore"):
        return zero_points(_extremes(x, over, True, False)[0], values(scales), rule)


def encode(
    x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any], zeros: NDArray[Any] | None
) -> NDArray[Any]:
    """Codes of floats under scales."""
    codes = np.empty((over.rows, over.columns), rule.code.dtype)
    s = values(scales)
    with np.errstate(all="ignore"):
        for rows, tiles in _slabs(over):
            part = Tiling(rows.stop - rows.start, over.columns, over.r, over.c)
            v = x[rows].astype(np.float32) / expanded(np, s[tiles], part)
            if zeros is None:
                codes[rows] = rule.code.encode(v, rounding=rule.rounding)
            else:
                assert isinstance(rule.code, Integer)
                z = expanded(np, zeros[tiles], part).astype(np.float32)
                v = np.where(np.isnan(v), np.float32(0), v)
                codes[rows] = rule.code.clipped(np, rounded(np, v, rule.rounding) + z)
    return codes


def zero_points(low: Floats, s: Floats, rule: Rule) -> NDArray[np.int32]:
    """The codes of 0.0, from the least of each tile."""
    assert isinstance(rule.code, Integer)
    z = rounded(np, np.float32(rule.code.min) - low / s, rule.rounding)
    points: NDArray[np.int32] = rule.code.clipped(np, z).astype(np.int32)
    return points


def _extremes(x: NDArray[Any], over: Tiling, both: bool, keeps_nan: bool) -> tuple[Floats, Floats]:
    """The least and the largest of every tile, 0 included; without ``both``: 0 and the largest magnitude."""
    least, most = (np.minimum, np.maximum) if keeps_nan else (np.fmin, np.fmax)
    low, high = np.zeros(over.shape, np.float32), np.zeros(over.shape, np.float32)
    starts = np.arange(0, over.columns, over.c)
    if not (x.size and starts.size):
        return low, high
    for rows, tiles in _slabs(over):
        part = x[rows].astype(np.float32)
        if not both:
            part = np.abs(part)
        high[tiles] = _by_tile(most, high[tiles], part, starts, over.r)
        if both:
            low[tiles] = _by_tile(least, low[tiles], part, starts, over.r)
    return low, high


def _by_tile(extreme: np.ufunc, so_far: Floats, part: Floats, starts: NDArray[Any], r: int) -> Floats:
    by_columns = extreme.reduceat(part, starts, axis=1)
    by_tile = extreme.reduceat(by_columns, np.arange(0, len(part), r), axis=0)
    extremes: Floats = extreme(so_far, by_tile)
    return extremes


def _slabs(over: Tiling) -> list[tuple[slice, slice]]:
    """Rows a few at a time, with the tiles they lie in: whole tiles, or parts of one."""
    step = max(1, STEP // max(over.columns, 1))
    step = step // over.r * over.r if step > over.r else step
    slabs, start = [], 0
    while start < over.rows:
        end = start // over.r * over.r + over.r if step < over.r else over.rows
        stop = min(start + step, end, over.rows)
        slabs.append((slice(start, stop), slice(start // over.r, -(-stop // over.r))))
        start = stop
    return slabs
