"""``gq.quantize_scaled`` on the GPU: floats to codes with scales and back, bit for bit as codes/scaling.py.

    _codes.py          a quotient to its code, a tile's extremes to its scale and zero point; quotients that
                       give the codes of IEEE division, two instructions each
    _kernels.py        loads of 16 bytes as floats; tiles within a row, 16 to 512 columns: read once, in a
                       part of a warp; tiles of up to 16384 floats, whole rows too: read once, in a block;
                       any tile: extremes, scales and codes, a kernel each
    decode.py          codes with scales back to floats

``quantize`` takes the first of these that serves a tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....codes.scaling import Quantized, Rule, empty
from ....codes.tiling import Tiling
from ....errors import UnsupportedError
from ...driver import device
from ...driver.device import cupy
from ...driver.launch import address_and_strides, by_levels
from ...layouts.floats import FLOAT32, converted
from . import _kernels
from ._codes import NATIVE, PIECE_THREADS, WORDS, Conversion, keeps_nan_of
from ._kernels import SIZES, WIDE, floats_per_load

MAX_COUNT = 1 << 31  # of rows, columns, and half of the tiles, which kernels count in 32 bits


class FloatRows(NamedTuple):
    """Rows of floats as kernels take them."""

    x: Any
    kind: str
    pitch: int  # elements from one to the next

    def wide(self, over: Tiling) -> bool:
        """True where all loads of 16 bytes are aligned, and whole within tiles."""
        per = floats_per_load(self.kind, True)
        cut = over.c % per if over.shape[1] > 1 else 0
        return not (self.x.data.ptr % WIDE or self.pitch % per or over.columns % per or cut)


def quantize(rows: Any, over: Tiling, rule: Rule) -> Quantized:
    """Quantize floats [rows, columns] on the current device to codes, scales and zero points."""
    result = room_for(over, rule)
    quantize_into(rows, over, rule, result)
    return result


def quantize_into(rows: Any, over: Tiling, rule: Rule, result: Quantized) -> None:
    """Quantize into arrays that exist, as :func:`room_for` makes them."""
    if result.codes.size:
        floats, conversion = rows_of(rows, over), conversion_of(rule)
        if not _at_once(floats, over, rule, conversion, result):
            _scale(floats, over, rule, conversion, result)
            _encode(floats, over, conversion, result)


def encode(rows: Any, over: Tiling, rule: Rule, scales: Any, zeros: Any | None) -> Any:
    """The codes of floats under scales that the caller has, with zero points if there are any."""
    result = Quantized(cupy().empty((over.rows, over.columns), rule.code.dtype), scales, zeros)
    if result.codes.size:
        _encode(rows_of(rows, over), over, conversion_of(rule, scales), result)
    return result.codes


def zeros_of(rows: Any, over: Tiling, rule: Rule, scales: Any) -> Any:
    """The zero points that belong to given scales."""
    zeros = empty(cupy(), over.shape, np.int32, rule.order)
    if rows.size:
        result = Quantized(rows, scales, zeros)
        _scale(rows_of(rows, over), over, rule, conversion_of(rule, scales), result, given_scales=True)
    return zeros


# --- operands -----------------------------------------------------------------------------------


def rows_of(rows: Any, over: Tiling) -> FloatRows:
    """The ``FloatRows`` of a 2-D array, in place where kernels can read it; otherwise a copy."""
    if max(*over[:2], over.shape[0] * over.shape[1] // 2) >= MAX_COUNT:
        raise UnsupportedError(
            f"quantize_scaled of {over.rows} rows and {over.columns} columns in tiles of {over[2:]}: "
            "kernels count rows, columns and tiles in 32 bits; quantize fewer rows at a time, x[:n]"
        )
    kind = rows.dtype.name
    if kind == "bfloat16":
        rows = rows.view(np.uint16)
    elif kind == "float64":
        rows, kind = converted(rows, FLOAT32), "float32"
    down, along = rows.strides
    size, per = SIZES[kind], floats_per_load(kind, True)
    if (along != size and over.columns > 1) or down < 0 or down % size:
        rows = cupy().ascontiguousarray(rows)
    pitch = rows.strides[0] // size if over.rows > 1 else over.columns
    if over.columns % per == 0 and (rows.data.ptr % WIDE or pitch % per):
        rows, pitch = rows.copy(), over.columns  # aligned, for kernels that read it once
    return FloatRows(rows, kind, pitch)


def room_for(over: Tiling, rule: Rule) -> Quantized:
    """New arrays for codes, scales and zero points, without values."""
    codes = cupy().empty((over.rows, over.columns), rule.code.dtype)
    scales = empty(cupy(), over.shape, np.float32 if rule.scale == "float32" else np.uint8, rule.order)
    zeros = empty(cupy(), over.shape, np.int32, rule.order) if rule.zeros else None
    return Quantized(codes, scales, zeros)


def conversion_of(rule: Rule, scales: Any = None) -> Conversion:
    """The conversion of a rule on this device; ``scales`` are those of the caller, if any."""
    capability = device.capability()
    native = rule.code.name in WORDS and capability is not None and capability >= NATIVE
    scale = rule.scale if scales is None else "e8m0" if scales.dtype == np.uint8 else "float32"
    return Conversion(rule.code.name, scale, rule.rounding, rule.zeros, native)


def _bits(eps: Any) -> int:
    return int(np.float32(eps).view(np.uint32))


# --- launches -----------------------------------------------------------------------------------


def _matrix_arguments(floats: FloatRows, over: Tiling, result: Quantized) -> tuple[Any, ...]:
    """The arguments for MATRIX_PARAMETERS."""
    scales, zeros = address_and_strides(result.scales), address_and_strides(result.zeros)
    return floats.x, floats.pitch, result.codes, over.columns, *scales, *zeros


def _at_once(floats: FloatRows, over: Tiling, rule: Rule, conversion: Conversion, result: Quantized) -> bool:
    """Quantize in one kernel that reads each float once; False where there is none for these tiles."""
    if not floats.wide(over):
        return False
    if over.r == 1 and over.c in _kernels.GROUPS and over.columns % over.c == 0:
        across, at_once = -(-over.columns // _kernels.COLUMNS), _kernels.rows_at_once(floats.kind, conversion)
        levels = -(-over.rows // (_kernels.ROWS * at_once))
        few = at_once > 1 and across * levels < device.multiprocessors()
        levels = -(-over.rows // _kernels.ROWS) if few else levels
        kernel = _kernels.group_kernel(floats.kind, conversion, over.c, few)
    else:
        tile = _tile_for(over)
        if tile is None:
            return False
        kernel = _kernels.block_kernel(floats.kind, conversion, tile)
        levels, across = over.shape
    matrix = _matrix_arguments(floats, over, result)
    by_levels(kernel, across, levels, *matrix, over.rows, _bits(rule.eps))
    return True


def _tile_for(over: Tiling) -> tuple[int, int] | None:
    """The smallest tile of the kernels in _kernels.py that equals this one, or holds an axis as a whole."""
    down, along = over.shape
    for tile in sorted(_kernels.TILES, key=lambda tile: tile[0] * tile[1]):
        rows_fit = tile[0] == over.r or (down == 1 and tile[0] >= over.rows)
        columns_fit = tile[1] == over.c or (along == 1 and tile[1] >= over.columns)
        if rows_fit and columns_fit:
            return tile
    return None


def _scale(
    floats: FloatRows,
    over: Tiling,
    rule: Rule,
    conversion: Conversion,
    result: Quantized,
    *,
    given_scales: bool = False,
) -> None:
    """Scales and zero points from the extremes of tiles."""
    both, wide, (down, along) = conversion.zeros, floats.wide(over), over.shape
    extremes = cupy().zeros((1 + both, down * along), np.uint32)
    lanes = 32 if over.c >= 32 else 1
    parts = -(-over.c // (lanes * _kernels.PIECES_AT_ONCE * floats_per_load(floats.kind, wide)))
    levels_of_tile = -(-over.r // _kernels.ITEM_ROWS)
    keeps_nan = keeps_nan_of(conversion) and not given_scales
    take = _kernels.extremes_kernel(floats.kind, both, keeps_nan, wide, lanes)
    across = -(-along * parts * lanes // _kernels.EXTREMES_THREADS)
    sizes = over.rows, over.columns, over.r, over.c, along, parts, levels_of_tile
    highs, lows = extremes[0], extremes[-1]
    by_levels(take, across, down * levels_of_tile, floats.x, floats.pitch, highs, lows, *sizes)
    make = _kernels.scales_kernel(_kernels.scale_conversion(conversion), given_scales)
    where = *address_and_strides(result.scales), *address_and_strides(result.zeros), down, along
    make(
        (-(-down * along // _kernels.EXTREMES_THREADS),),
        (_kernels.EXTREMES_THREADS,),
        highs,
        lows,
        *where,
        _bits(rule.eps),
    )


def _encode(floats: FloatRows, over: Tiling, conversion: Conversion, result: Quantized) -> None:
    """Codes under scales that exist."""
    wide = floats.wide(over)
    loads = over.columns // floats_per_load(floats.kind, wide)
    shift = min((loads - 1).bit_length(), PIECE_THREADS.bit_length() - 1)
    across, levels = -(-loads // (1 << shift)), -(-over.rows // (PIECE_THREADS >> shift))
    kernel = _kernels.encode_kernel(floats.kind, conversion, wide)
    matrix = _matrix_arguments(floats, over, result)
    by_levels(kernel, across, levels, *matrix, over.rows, over.r, over.c, shift)
