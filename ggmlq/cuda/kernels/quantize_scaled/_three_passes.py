"""Quantizes floats with a scale for each tile of any size, in three kernels: extremes, scales, then codes.

The first leaves its results in memory: a word a tile for the largest value (without zero points, the
largest magnitude) and one for the magnitude of the least, as bits, which atomic maxima of integers compare
as floats, for neither is ever negative. Codes under scales of the caller take the last kernel alone.

Rows are read twice, so this serves only tiles that no other kernel here takes: a whole tensor with one
scale, tiles of odd sizes, rows at odd addresses, last tiles that are shorter.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ....codes import CODES
from ...driver.launch import Kernel, family
from ...intrinsics import codes as words
from ...intrinsics import dependent_launch, ptx
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ._codes import Conversion, divider, scale_loading, scale_storing, scaler, storing, zero_of
from ._groups import SIZES, agreeing, conversions, extremes, floats_per_load, loading, tried

THREADS = 256
AT_ONCE = 4  # pieces that a lane loads before it looks at one
HEIGHT = 4  # rows of a tile that a warp, or a thread, goes through


@family(product(SIZES, (False, True), (False, True), (False, True), (1, 32)))
def extremes_kernel(kind: str, both: bool, keeps_nan: bool, wide: bool, lanes: int) -> Kernel:
    """The kernel for extremes: items of ``HEIGHT`` rows and ``lanes`` times ``AT_ONCE`` pieces, ``lanes``
    lanes each.
    """
    size, per = SIZES[kind], floats_per_load(kind, wide)
    load, agree, take_turn = loading(kind, wide), agreeing(lanes, both, keeps_nan), dependent_launch.take_turn
    values, part = AT_ONCE * per, lanes * AT_ONCE * per
    widen = extremes(values, both, keeps_nan)

    def take(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        highs: Any, lows: Any,  # uint32 [tiles down, tiles along], 0 at first
        rows: Any, columns: Any, r: Any, c: Any,
        along: Any, parts: Any,  # tiles of a row, items along a tile
        down: Any,  # items down a tile
        first: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        item, lane = uint32(thread // lanes), uint32(thread % lanes)
        tile_column, p = uint32(item // parts), uint32(item % parts)
        level = uint32(uint32(cuda.blockIdx.y) + first)
        tile_row, h = uint32(level // down), uint32(level % down)
        row = uint32(tile_row * r + h * HEIGHT)
        row_end = min(uint32(row + HEIGHT), uint32(tile_row * r + r), rows)
        end = uint32(0)
        if tile_column < along:
            end = min(uint32(tile_column * c + c), columns)
        start = uint32(tile_column * c + p * part + lane * per)
        high, low = float32(0), float32(0)
        while row < row_end:
            v = cuda.local.array(values, float32)
            for i in range(values):
                v[i] = float32(0)
            for i in range(AT_ONCE):
                column = uint32(start + uint32(i * lanes * per))
                if column < end:
                    load(address(x, row, pitch, column, size), v, i * per)
            high, low = widen(v, high, low)
            row = uint32(row + 1)
        high, low = agree(high, low)
        if lane == 0 and tile_column < along:
            tile = uint64(tile_row) * along + tile_column
            if int32(ptx.bits_of(high)) > int32(0):  # NaN too
                words.atomic_max(highs + tile * 4, ptx.bits_of(high))
            if both and int32(ptx.bits_of(low)) > int32(0):
                words.atomic_max(lows + tile * 4, ptx.bits_of(low))

    long, word = uint64, uint32
    parameters = (long, long, long, long, *[word] * 8)
    marks = f"{' of both signs' * both}{' or NaN' * keeps_nan}"
    name = f"extremes of {kind}{marks}, {per} a load, {lanes} lanes"
    return Kernel(name, take, *parameters, threads=THREADS, early=True)


def scale_conversion(conversion: Conversion) -> Conversion:
    """A conversion with only those facts that scales and zero points depend on."""
    return conversion._replace(
        native=False, rounding=conversion.rounding if conversion.zeros else "half_even"
    )


CONVERSIONS = tuple(dict.fromkeys(scale_conversion(conversion) for conversion in conversions()))


@family(
    (conversion, given_scales)
    for conversion in CONVERSIONS
    for given_scales in (False, True)
    if conversion.zeros or not given_scales
)
def scales_kernel(conversion: Conversion, given_scales: bool) -> Kernel:
    """The kernel for scales and zero points, a thread a tile; ``given_scales``: for zero points alone, under
    scales that exist.
    """
    scale_of, zero, load, store = (
        scaler(conversion),
        zero_of(conversion),
        scale_loading(conversion),
        scale_storing(conversion),
    )
    has_zeros, take_turn = conversion.zeros, dependent_launch.take_turn

    def make(
        highs: Any, lows: Any,  # uint32 [tiles down, tiles along]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        tiles_down: Any, tiles_along: Any, eps: Any,
    ) -> None:  # fmt: skip
        take_turn()
        tile = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if tile < uint32(tiles_down * tiles_along):
            i, j = uint64(tile // tiles_along), uint64(tile % tiles_along)
            at = tile * uint64(4)
            low = float32(0)
            if has_zeros:
                low = ptx.load_float(lows + at)
            to = scales + i * down + j * along
            if given_scales:
                s = load(to)
            else:
                s = scale_of(ptx.load_float(highs + at), low, ptx.float_of(eps))
                store(to, s)
            if has_zeros:
                zeros_to = zeros + i * zeros_down + j * zeros_along
                ptx.store4(zeros_to, uint32(zero(low, s)))

    long, word = uint64, uint32
    parameters = (*[long] * 8, word, word, word)
    name = f"{'zero points' if given_scales else 'scales'} of tiles: {conversion}"
    return Kernel(name, make, *parameters, threads=THREADS, early=True)


@family(tried((True, False)))
def encode_kernel(kind: str, conversion: Conversion, wide: bool) -> Kernel:
    """The kernel for codes under scales, a piece a thread; 2**``shift`` threads of a block are on one row."""
    size, per = SIZES[kind], floats_per_load(kind, wide)
    load, load_scale, store = loading(kind, wide), scale_loading(conversion), storing(conversion, per)
    prepare, divide = divider(CODES[conversion.code], conversion.zeros, conversion.scale, per)
    code_size, has_zeros, take_turn = conversion.size, conversion.zeros, dependent_launch.take_turn

    def encode(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, r: Any, c: Any, shift: Any, first: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(cuda.threadIdx.x)
        across = uint32(thread & uint32(uint32(1 << shift) - 1))
        column = uint32(uint32(uint32(cuda.blockIdx.x) << shift) + across) * per
        level = uint32(uint32(cuda.blockIdx.y) + first)
        row = uint32(uint32(level * uint32(THREADS >> shift)) + uint32(thread >> shift))
        if row < rows and column < columns:
            v = cuda.local.array(per, float32)
            load(address(x, row, pitch, column, size), v, 0)
            i, j = uint64(row // r), uint64(column // c)
            s = load_scale(scales + i * down + j * along)
            zero = int32(0)
            if has_zeros:
                zero = int32(words.load4(zeros + i * zeros_down + j * zeros_along))
            divide(v, s, prepare(s))
            store(address(codes, row, columns, column, code_size), v, 0, zero)

    long, word = uint64, uint32
    parameters = (long, long, long, word, long, long, long, long, long, long, *[word] * 5)
    name = f"{kind} to {conversion}, {per} a thread"
    return Kernel(name, encode, *parameters, threads=THREADS, least=conversion.least, early=True)
