"""The driver that quantizes floats to codes with scales: rows that kernels can read, units, threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.threads import share
from ...codes import scaling
from ...codes.scaling import Quantized, Rule, empty, values
from ...codes.tiling import Tiling
from ..machine.kernels import Kernel, kernel
from ..machine.tables import Address, address
from ..machine.target import Target, target
from ..machine.workers import scratch, share_kernel

COPIED = 1 << 16  # elements that a thread converts at a time


def quantize(x: NDArray[Any], over: Tiling, rule: Rule) -> Quantized:
    """Quantize floats [rows, columns] to codes, scales and zero points."""
    if _odd(over):
        return scaling.quantize(x, over, rule)
    x = _readable(x)
    cut = near(over, x.itemsize)
    if cut is None:
        low, high = _extremes(x, over, rule, rule.keeps_nan)
        scales, zeros = _scales(low, high, rule)
        return Quantized(encode(x, over, rule, scales, zeros), *_ordered(scales, zeros, rule))
    codes = scratch((over.rows, over.columns), rule.code.dtype)
    scales = scratch(over.shape, np.uint8 if rule.scale == "e8m0" else np.float32)
    zeros = scratch(over.shape, np.int32) if rule.zeros else None
    whole_tiles(x, cut, rule, Quantized(codes, scales, zeros))
    return Quantized(codes, *_ordered(scales, zeros, rule))


def whole_tiles(x: NDArray[Any], cut: Cut, rule: Rule, to: Quantized) -> None:
    """Quantize rows that kernels can read, cut into whole tiles, into ``to``."""
    arguments = _numbers(x, cut, to.codes)._replace(
        scales=address(to.scales),
        zeros=0 if to.zeros is None else address(to.zeros),
        eps=int(rule.eps.view(np.uint32)),
    )
    share_kernel(_fused(x.dtype, rule), arguments, cut.units)


def at_hand(x: NDArray[Any], over: Tiling, rule: Rule, static: bool) -> bool:
    """True if nothing has to be compiled to quantize such numbers, under static scales or others."""
    if _odd(over):
        return True
    dtype = x.dtype if _kernels_read(x.dtype) else np.dtype(np.float32)
    if near(over, dtype.itemsize) and not static:
        return _fused(dtype, rule).at_hand
    also = not rule.zeros if static else _measured(dtype, rule, rule.keeps_nan).at_hand
    return also and _encoder(dtype, rule, rule.zeros).at_hand


def encode(
    x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any], zeros: NDArray[Any] | None
) -> NDArray[Any]:
    """The codes of floats under scales that exist already."""
    if _odd(over):
        return scaling.encode(x, over, rule, scales, zeros)
    x = _readable(x)
    codes, cut = np.empty((over.rows, over.columns), rule.code.dtype), flat(over, x.itemsize)
    steps = np.ascontiguousarray(values(scales))
    points = None if zeros is None else np.ascontiguousarray(zeros, np.int32)
    arguments = _numbers(x, cut, codes)._replace(
        scales=address(steps), zeros=0 if points is None else address(points)
    )
    share_kernel(_encoder(x.dtype, rule, zeros is not None), arguments, cut.units)
    return codes


def zeros_of(x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any]) -> NDArray[np.int32]:
    """The zero points that go with static scales."""
    if _odd(over):
        return scaling.zeros_of(x, over, rule, scales)
    low, _ = _extremes(_readable(x), over, rule._replace(zeros=True), False)
    with np.errstate(all="ignore"):
        return scaling.zero_points(low, values(scales), rule)


def _odd(over: Tiling) -> bool:
    """True if tiles are too narrow for vectors, or there are none."""
    return not (over.rows and over.columns) or over.c < LANES


def _readable(x: NDArray[Any]) -> NDArray[Any]:
    """Rows that kernels read where they are, or a copy: neighbours side by side, at most float32."""
    wide = not _kernels_read(x.dtype)
    if not wide and (x.strides[1] == x.itemsize or x.shape[1] == 1):
        return x
    copied = np.empty(x.shape, np.float32 if wide else x.dtype)

    def copy(first: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            copied[first:stop] = x[first:stop]

    share(copy, len(x), max(1, COPIED // x.shape[1]))
    return copied


def _kernels_read(dtype: np.dtype[Any]) -> bool:
    """True if kernels read numbers of a dtype."""
    return dtype.name in WIDTH and dtype.isnative


def _fused(dtype: np.dtype[Any], rule: Rule) -> Kernel:
    case = Kind(dtype.name, rule.code.name, rule.rounding, rule.zeros, rule.scale, target())
    return kernel("quantize_scaled.kernels.quantizer", *case)


def _encoder(dtype: np.dtype[Any], rule: Rule, zeros: bool) -> Kernel:
    case = dtype.name, rule.code.name, rule.rounding, zeros, target()
    return kernel("quantize_scaled.kernels.encoder", *case)


def _measured(dtype: np.dtype[Any], rule: Rule, keeps_nan: bool) -> Kernel:
    return kernel("quantize_scaled.kernels.extremes_finder", dtype.name, rule.zeros, keeps_nan, target())


def _numbers(x: NDArray[Any], cut: Cut, codes: NDArray[Any]) -> Numbers:
    """Arguments of a kernel whose result is codes."""
    lines = address(x), x.strides[0], address(codes), codes.strides[0]
    return Numbers(*cut, *lines, scales=0, zeros=0, eps=0, low=0, most=0)


def _extremes(
    x: NDArray[Any], over: Tiling, rule: Rule, keeps_nan: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the largest of each tile and of 0: of its parts first, then of these."""
    cut = far(over, x.itemsize)
    low, high = np.zeros((2, cut.units), np.float32)
    arguments = _numbers(x, cut, x)._replace(low=address(low), most=address(high))
    share_kernel(_measured(x.dtype, rule, keeps_nan), arguments, cut.units)
    most = np.maximum if keeps_nan else np.fmax
    return _together(np.fmin, low, cut, over), _together(most, high, cut, over)


def _together(extreme: np.ufunc, parts: NDArray[Any], cut: Cut, over: Tiling) -> NDArray[Any]:
    """The extremes of tiles, from those of the units that each is cut into."""
    rows = extreme.reduce(parts.reshape(cut.bands, cut.parts, cut.across), axis=1)
    tiles: NDArray[Any] = extreme.reduce(rows.reshape(*over.shape, -1), axis=2)
    return tiles


def _scales(low: NDArray[Any], high: NDArray[Any], rule: Rule) -> tuple[NDArray[Any], Any]:
    """Scales and zero points by the rule, from the extremes of tiles."""
    with np.errstate(all="ignore"):
        return scaling.scales_of(low, high, rule)


def _ordered(scales: NDArray[Any], zeros: Any, rule: Rule) -> tuple[NDArray[Any], Any]:
    """Scales and zero points in the order of the rule."""
    if rule.order == "rows":
        return scales, zeros

    def moved(part: NDArray[Any]) -> NDArray[Any]:
        copied: NDArray[Any] = empty(np, part.shape, part.dtype, rule.order)
        copied[...] = part
        return copied

    return moved(scales), None if zeros is None else moved(zeros)


# --- The units that threads take: whole tiles that the cache holds, or parts of tiles too large for it ---
#
# *Near*: a unit is one row of tiles, and of it as many columns as the cache holds; their extremes, scales
# and codes are made one after the other. *Far*: a unit is a part of one tile; the extremes of all units are
# computed and put together. *Flat*: a unit is a part of a tile, or of a few beside each other, which is
# encoded under scales that are known by then.

SMALL = 16 << 10  # bytes of a unit of small tiles: the first cache holds them
NEAR = 256 << 10  # of a unit of larger ones: a part of the second cache
LARGEST = 512 << 10  # of a tile that is still near


class Cut(NamedTuple):
    """Units over [rows, columns], by bands of r rows; the last of each may be shorter."""

    rows: int
    columns: int
    r: int  # rows of a band: of a tile
    c: int  # columns of a tile
    high: int  # rows of a unit
    wide: int  # columns of a unit: tiles, or a part of one
    parts: int  # units below each other in a band
    across: int  # units beside each other

    @property
    def bands(self) -> int:
        """The number of rows of tiles."""
        return -(-self.rows // self.r)

    @property
    def units(self) -> int:
        """The number of units."""
        return self.bands * self.parts * self.across


def near(over: Tiling, itemsize: int) -> Cut | None:
    """Units of whole tiles, or None where a tile is too large."""
    tile = over.r * over.c * itemsize
    if tile > LARGEST:
        return None
    tiles = max(1, (SMALL if 4 * tile <= SMALL else NEAR) // tile)
    return _cut(over, over.r, tiles * over.c)


def far(over: Tiling, itemsize: int) -> Cut:
    """Units for extremes of large tiles: parts of tiles that a thread reads in one go, each of one tile."""
    wide = min(over.c, NEAR // itemsize)
    high = min(over.r, max(1, NEAR // (wide * itemsize)))
    if wide < over.c < over.columns:
        return _cut(over, high, over.c)  # a unit never holds parts of two tiles
    return _cut(over, high, wide)


def flat(over: Tiling, itemsize: int) -> Cut:
    """Units for encoding under known scales: rows of tiles, in parts."""
    near_by = NEAR // itemsize
    columns = near_by if over.c >= over.columns else max(over.c, near_by // over.c * over.c)
    high = min(over.r, max(1, NEAR // (min(columns, over.columns) * itemsize)))
    return _cut(over, high, columns)


def _cut(over: Tiling, high: int, wide: int) -> Cut:
    wide = min(wide, max(over.columns, 1))
    return Cut(*over, high, wide, -(-over.r // high), -(-over.columns // wide))


# --- The cases that kernels of the quantizer are compiled for, and their arguments ----------------

LANES = 16  # numbers at a time
WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number


class Kind(NamedTuple):
    """The case that a kernel from numbers to codes and scales is compiled for."""

    read: str  # dtype of the numbers
    code: str  # a name in CODES
    rounding: str
    zeros: bool
    scale: str  # "float32" or "e8m0"
    target: Target


class Numbers(NamedTuple):
    """The arguments of all kernels: numbers [rows, columns], their units, their results."""

    rows: int
    columns: int
    r: int  # of a tile
    c: int
    high: int  # of a unit, see units.py
    wide: int
    parts: int
    across: int
    numbers: Address  # the first of them
    pitch: int  # bytes from a row to the next
    codes: Address
    codes_pitch: int
    scales: Address  # [bands, tiles of a row]
    zeros: Address  # int32, the same; or 0
    eps: int  # the bits of a float32
    low: Address  # float32, one a unit: the least so far
    most: Address  # the same: the largest
