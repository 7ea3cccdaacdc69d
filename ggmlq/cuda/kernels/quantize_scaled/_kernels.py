"""Kernels that quantize floats with scales: groups of a row, tiles in a block, any tile in three passes."""

from __future__ import annotations

import operator
from itertools import product
from typing import Any

from ....codes import CODES
from ...driver.launch import Kernel, family
from ...intrinsics import codes8, hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, address, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ._codes import (
    MATRIX_PARAMETERS,
    PIECE_THREADS,
    WORDS,
    Conversion,
    divider,
    keeps_nan_of,
    piece_placer,
    scale_loading,
    scale_storing,
    scaler,
    storing,
    zero_of,
)

# Loads of rows: the floats of 16 bytes at once, or one float where rows are not aligned so.

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # kinds of floats with the bytes of one
WIDE = 16  # bytes of a wide load


def floats_per_load(kind: str, wide: bool) -> int:
    """Floats of one load."""
    return WIDE // SIZES[kind] if wide else 1


def spreading(kind: str) -> Any:
    """The device function ``spread(words, w, v, i)``: four words from w on become floats from v[i] on."""

    @inlined
    def spread(words: Any, w: Any, v: Any, i: Any) -> None:
        for e in range(4):
            if kind == "float32":
                v[i + e] = ptx.float_of(words[w + e])
            elif kind == "float16":
                pair = codes8.half_values(words[w + e])
                v[i + 2 * e], v[i + 2 * e + 1] = pair[0], pair[1]
            else:
                v[i + 2 * e] = ptx.float_of(uint32(words[w + e] << 16))
                v[i + 2 * e + 1] = ptx.float_of(uint32(words[w + e] & 0xFFFF0000))

    return spread


@inlined
def words_into(words: Any, w: Any, at: Any) -> None:
    """16 bytes of memory as four words from w on."""
    four = ptx.load_words(at)
    words[w], words[w + 1], words[w + 2], words[w + 3] = four[0], four[1], four[2], four[3]


def loading(kind: str, wide: bool) -> Any:
    """The device function ``load(at, v, i)``: the floats of one load from v[i] on."""
    spread = spreading(kind)
    if wide:

        @inlined
        def load_wide(at: Any, v: Any, i: Any) -> None:
            words = cuda.local.array(4, uint32)
            words_into(words, 0, at)
            spread(words, 0, v, i)

        return load_wide

    @inlined
    def load_one(at: Any, v: Any, i: Any) -> None:
        if kind == "float32":
            v[i] = ptx.load_float(at)
        elif kind == "float16":
            v[i] = ptx.half_value(ptx.load2(at))
        else:
            v[i] = ptx.float_of(uint32(ptx.load2(at) << 16))

    return load_one


@inlined
def larger_or_nan(a: Any, b: Any) -> Any:
    """The larger of a, which is never negative, and b; a NaN without a sign is the largest.

    As integers: so bits of such floats are ordered, and those of all with a sign lie below.
    """
    return ptx.float_of(uint32(max(int32(ptx.bits_of(a)), int32(ptx.bits_of(b)))))


@inlined
def without_sign(v: Any) -> Any:
    return ptx.float_of(uint32(ptx.bits_of(v) & 0x7FFFFFFF))


@inlined
def with_other_sign(v: Any) -> Any:
    return ptx.float_of(uint32(ptx.bits_of(v) ^ 0x80000000))


def extremes(count: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``widen(v, high, low)`` that extends the extremes so far by ``count`` floats.

    ``both``: of values the largest, and the magnitude of the least; otherwise the largest magnitude.
    ``keeps_nan``: one of them is NaN where any value is; otherwise NaN is passed over.
    """
    larger = larger_or_nan if keeps_nan else ptx.larger
    negative, size = (with_other_sign, without_sign) if keeps_nan else (operator.neg, abs)

    @inlined
    def widen(v: Any, high: Any, low: Any) -> Any:
        for i in range(count):
            if both:
                high, low = larger(high, v[i]), larger(low, negative(v[i]))
            else:
                high = larger(high, size(v[i]))
        return high, low

    return widen


def agreeing(lanes: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``agree(high, low)``: the extremes of ``lanes`` neighbours, a power of two."""
    steps, larger = lanes.bit_length() - 1, larger_or_nan if keeps_nan else ptx.larger

    @inlined
    def agree(high: Any, low: Any) -> Any:
        for i in range(steps):
            step = lanes >> i + 1
            high = larger(high, cuda.shfl_xor_sync(ALL_LANES, high, step))
            if both:
                low = larger(low, cuda.shfl_xor_sync(ALL_LANES, low, step))
        return high, low

    return agree


def conversions() -> Any:
    """All conversions from floats to codes."""
    for code, scale in product(CODES.values(), ("float32", "e8m0")):
        if code.kind == "scale":
            continue
        natives = (False, True) if code.name in WORDS else (False,)
        shifts = (False, True) if code.kind == "integer" and code.min != -code.max else (False,)
        for native, rounding, zeros in product(natives, code.roundings, shifts):
            yield Conversion(code.name, scale, rounding, zeros, native)


# Parameters of kernels that quantize at once: those of a matrix; rows, the bits of eps, the first level.
AT_ONCE_PARAMETERS = (*MATRIX_PARAMETERS, uint32, uint32, uint32)
USUAL = Conversion("e4m3", "float32", "half_even", False, True)


def tried(shapes: Any) -> Any:
    """The cases of a family: each kind of floats with each shape, each conversion from float16."""
    yield from ((kind, USUAL, shape) for kind, shape in product(SIZES, shapes))
    yield from (("float16", conversion, shapes[0]) for conversion in conversions())


# --- groups of 16 to 512 columns of a row: a few lanes of a warp hold one -------------------------
#
#     block    8 rows × 512 columns at a time, a warp a row; a group of 128 is 8 lanes
#     lane     16 floats: 2 pieces of 16-bit ones or 4 of float32, the lanes of a group side by side in each,
#              so that what a warp loads and stores in one instruction is whole sectors of memory
#     rows     a warp loads two rows of 16-bit floats at once, so that a lane awaits 64 bytes, as of float32;
#              one where rows are too few for blocks on all multiprocessors
#
# All loads are issued before the first is used. A group never leaves the registers: shuffles among its
# lanes find the largest magnitude, each lane computes scale and inverse itself. The scales of a block's 8
# rows fill a sector where scales run down columns.
#
# Limited by memory: 3.03 bytes an element of 16 bits, and about 10 instructions.

LANE_FLOATS, ROWS, COLUMNS = 16, 8, 512  # floats of a lane; rows and columns that a block has at a time
ROWS_AT_ONCE = {"float16": 2, "bfloat16": 2, "float32": 1}  # that a warp loads, if codes are quick
GROUP_THREADS = 32 * ROWS
GROUPS = (128, 16, 32, 64, 256, 512)  # columns of a group


def rows_at_once(kind: str, conversion: Conversion) -> int:
    """Rows that a warp loads before it uses the first: 1 or 2."""
    quick = conversion.native or (CODES[conversion.code].kind == "integer" and not conversion.zeros)
    return ROWS_AT_ONCE[kind] if quick else 1


@family(tried(GROUPS))
def group_kernel(kind: str, conversion: Conversion, columns_of_group: int, few: bool = False) -> Kernel:
    """The kernel for groups of a length; ``few``: a warp has one row at a time."""
    size, per = SIZES[kind], floats_per_load(kind, True)
    loads, lanes, group = LANE_FLOATS // per, columns_of_group // LANE_FLOATS, columns_of_group
    at_once = 1 if few else rows_at_once(kind, conversion)
    spread, widen = spreading(kind), extremes(LANE_FLOATS, conversion.zeros, keeps_nan_of(conversion))
    agree = agreeing(lanes, conversion.zeros, keeps_nan_of(conversion))
    raw, all_raw = 4 * loads, 4 * loads * at_once  # words of a row, and of all
    scale_of, zero = scaler(conversion), zero_of(conversion)
    prepare, divide = divider(CODES[conversion.code], conversion.zeros, conversion.scale, LANE_FLOATS)
    store, store_scale, store4 = storing(conversion, per), scale_storing(conversion), ptx.store4
    code_size, has_zeros, start_dependent = conversion.size, conversion.zeros, hopper.take_turn

    def quantize(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # bytes from a scale to the one below, and to the next in a row
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, eps: Any, first: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & 31)
        level = uint32(uint32(cuda.blockIdx.y) + first)
        row0 = uint32(level * (ROWS * at_once) + uint32(thread >> 5))
        start = uint32(uint32(cuda.blockIdx.x) * COLUMNS + lane // lanes * group)
        part = uint32(lane % lanes)
        column = uint32(start + part * per)
        words, v = cuda.local.array(all_raw, uint32), cuda.local.array(LANE_FLOATS, float32)
        for t in range(at_once):
            for w in range(raw):
                words[t * raw + w] = uint32(0)
            row = uint32(row0 + uint32(t * ROWS))
            if row < rows and start < columns:
                at = address(x, row, pitch, column, size)
                for p in range(loads):
                    words_into(words, t * raw + 4 * p, at + uint64(p * lanes * 16))
        for t in range(at_once):
            row = uint32(row0 + uint32(t * ROWS))
            for p in range(loads):
                spread(words, t * raw + 4 * p, v, p * per)
            high, low = widen(v, float32(0), float32(0))
            high, low = agree(high, low)
            s = scale_of(high, low, ptx.float_of(eps))
            z = zero(low, s)
            divide(v, s, prepare(s))
            if row < rows and start < columns:
                to = address(codes, row, columns, column, code_size)
                for p in range(loads):
                    store(to + uint64(p * lanes * per * code_size), v, p * per, z)
                if part == 0:
                    i, j = uint64(row), uint64(start // group)
                    store_scale(scales + i * down + j * along, s)
                    if has_zeros:
                        store4(zeros + i * uint64(zeros_down) + j * uint64(zeros_along), uint32(z))

    name = f"groups of {group} {kind} to {conversion}{', few' * few}"
    return Kernel(
        name,
        quantize,
        *AT_ONCE_PARAMETERS,
        threads=GROUP_THREADS,
        blocks=4,
        least=conversion.least,
        early=True,
    )


# --- tiles of up to 16384 floats: a block of threads holds one, and reads it once ------------------
#
# A thread loads all its pieces before it looks at one of them; the raw words stay, so that floats of 16 bits
# take half a register each, and are made into floats twice: for the extremes, then for the codes. Warps agree
# by shuffles, the block through a few words of shared memory.
#
#     128 × 128      of DeepSeek's weights: two rows of a tile, 256 bytes each, to a warp's load of 16 bits
#     1 × columns    whole rows, up to 16384; what a tile has beyond the last column is 0
#
# Limited by memory, and by what a multiprocessor holds at a time: three tiles of 16 bits, two of 32.

MAX_LOADS = 8  # of a thread
TILES = ((128, 128), (64, 64), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16384))  # powers of two


def shape_of(kind: str, tile: tuple[int, int]) -> tuple[int, int]:
    """Threads of a block, and pieces of a thread."""
    loads = tile[0] * tile[1] // floats_per_load(kind, True)
    threads = min(max(loads // MAX_LOADS, 128), 512)
    return threads, loads // threads


def all_agreeing(warps: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``agree(high, low)``: the extremes of all threads of a block."""
    agree_warp, agree_all = agreeing(32, both, keeps_nan), agreeing(warps, both, keeps_nan)

    @inlined
    def agree(high: Any, low: Any) -> Any:
        high, low = agree_warp(high, low)
        highs, lows = cuda.shared.array(warps, float32), cuda.shared.array(warps, float32)
        warp, lane = warp_and_lane()
        if lane == 0:
            highs[warp], lows[warp] = high, low
        # Warps go on one by one: without the barrier some would read places that no warp has written yet.
        # They are written once a block, so none is needed behind the loads.
        cuda.syncthreads()
        return agree_all(highs[lane % warps], lows[lane % warps])

    return agree


@family(tried(TILES))
def block_kernel(kind: str, conversion: Conversion, tile: tuple[int, int]) -> Kernel:
    """The kernel for tiles of a shape."""
    (tile_rows, tile_columns), size, per = tile, SIZES[kind], floats_per_load(kind, True)
    threads, loads = shape_of(kind, tile)
    across, warps = tile_columns // per, threads // 32  # pieces of a row
    fit = 1024 // threads if threads > 256 else 768 // threads
    spread, both, length, raw = spreading(kind), conversion.zeros, per, 4 * loads
    keeps_nan = keeps_nan_of(conversion)
    widen, agree = extremes(per, both, keeps_nan), all_agreeing(warps, both, keeps_nan)
    scale_of, zero = scaler(conversion), zero_of(conversion)
    prepare, divide = divider(CODES[conversion.code], both, conversion.scale, per)
    store, store_scale, store4 = storing(conversion, per), scale_storing(conversion), ptx.store4
    code_size, start_dependent = conversion.size, hopper.take_turn

    def quantize(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, eps: Any, first: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        thread = uint32(cuda.threadIdx.x)
        tile_row = uint32(uint32(cuda.blockIdx.y) + first)
        row0 = uint32(tile_row * tile_rows + thread // across)
        start = uint32(uint32(cuda.blockIdx.x) * tile_columns)
        column0 = uint32(start + thread % across * length)
        words, v = cuda.local.array(raw, uint32), cuda.local.array(length, float32)
        for p in range(loads):
            row = uint32(row0 + uint32(p * threads // across))
            column = uint32(column0 + uint32(p * threads % across * length))
            for e in range(4):
                words[4 * p + e] = uint32(0)
            if row < rows and column < columns:
                words_into(words, 4 * p, address(x, row, pitch, column, size))
        high, low = float32(0), float32(0)
        for p in range(loads):
            spread(words, 4 * p, v, 0)
            high, low = widen(v, high, low)
        high, low = agree(high, low)
        s = scale_of(high, low, ptx.float_of(eps))
        z, known = zero(low, s), prepare(s)
        for p in range(loads):
            row = uint32(row0 + uint32(p * threads // across))
            column = uint32(column0 + uint32(p * threads % across * length))
            if row < rows and column < columns:
                spread(words, 4 * p, v, 0)
                divide(v, s, known)
                store(address(codes, row, columns, column, code_size), v, 0, z)
        if thread == 0:
            i, j = uint64(tile_row), uint64(cuda.blockIdx.x)
            store_scale(scales + i * down + j * along, s)
            if both:
                store4(zeros + i * zeros_down + j * zeros_along, uint32(z))

    name = f"tiles of {tile_rows}x{tile_columns} {kind} to {conversion}"
    return Kernel(
        name, quantize, *AT_ONCE_PARAMETERS, threads=threads, blocks=fit, least=conversion.least, early=True
    )


# --- tiles of any size, in three kernels: extremes, scales, then codes -----------------------------
#
# The first leaves its results in memory: a word a tile for the largest value (without zero points, the
# largest magnitude) and one for the magnitude of the least, as bits, which atomic maxima of integers compare
# as floats, for neither is ever negative. Codes under scales of the caller take the last kernel alone.
#
# Rows are read twice, so this serves only tiles that no other kernel here takes: a whole tensor with one
# scale, tiles of odd sizes, rows at odd addresses, last tiles that are shorter.

EXTREMES_THREADS = 256
PIECES_AT_ONCE = 4  # that a lane loads before it looks at one
ITEM_ROWS = 4  # rows of a tile that a warp, or a thread, goes through


@family(product(SIZES, (False, True), (False, True), (False, True), (1, 32)))
def extremes_kernel(kind: str, both: bool, keeps_nan: bool, wide: bool, lanes: int) -> Kernel:
    """The kernel for extremes: items of ITEM_ROWS rows and ``lanes`` times PIECES_AT_ONCE pieces, ``lanes``
    lanes each.
    """
    size, per = SIZES[kind], floats_per_load(kind, wide)
    load, agree, start_dependent = (
        loading(kind, wide),
        agreeing(lanes, both, keeps_nan),
        hopper.take_turn,
    )
    values, part = PIECES_AT_ONCE * per, lanes * PIECES_AT_ONCE * per
    widen = extremes(values, both, keeps_nan)

    def take(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        highs: Any, lows: Any,  # uint32 [tiles down, tiles along], 0 at first
        rows: Any, columns: Any, r: Any, c: Any,
        along: Any, parts: Any,  # tiles of a row, items along a tile
        down: Any,  # items down a tile
        first: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        thread = uint32(cuda.blockIdx.x) * EXTREMES_THREADS + uint32(cuda.threadIdx.x)
        item, lane = uint32(thread // lanes), uint32(thread % lanes)
        tile_column, p = uint32(item // parts), uint32(item % parts)
        level = uint32(uint32(cuda.blockIdx.y) + first)
        tile_row, h = uint32(level // down), uint32(level % down)
        row = uint32(tile_row * r + h * ITEM_ROWS)
        row_end = min(uint32(row + ITEM_ROWS), uint32(tile_row * r + r), rows)
        end = uint32(0)
        if tile_column < along:
            end = min(uint32(tile_column * c + c), columns)
        start = uint32(tile_column * c + p * part + lane * per)
        high, low = float32(0), float32(0)
        while row < row_end:
            v = cuda.local.array(values, float32)
            for i in range(values):
                v[i] = float32(0)
            for i in range(PIECES_AT_ONCE):
                column = uint32(start + uint32(i * lanes * per))
                if column < end:
                    load(address(x, row, pitch, column, size), v, i * per)
            high, low = widen(v, high, low)
            row = uint32(row + 1)
        high, low = agree(high, low)
        if lane == 0 and tile_column < along:
            tile = uint64(tile_row) * along + tile_column
            if int32(ptx.bits_of(high)) > int32(0):  # NaN too
                ptx.atomic_max(highs + tile * 4, ptx.bits_of(high))
            if both and int32(ptx.bits_of(low)) > int32(0):
                ptx.atomic_max(lows + tile * 4, ptx.bits_of(low))

    parameters = *(uint64,) * 4, *(uint32,) * 8
    marks = f"{' of both signs' * both}{' or NaN' * keeps_nan}"
    name = f"extremes of {kind}{marks}, {per} a load, {lanes} lanes"
    return Kernel(name, take, *parameters, threads=EXTREMES_THREADS, early=True)


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
    has_zeros, start_dependent = conversion.zeros, hopper.take_turn

    def make(
        highs: Any, lows: Any,  # uint32 [tiles down, tiles along]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        tiles_down: Any, tiles_along: Any, eps: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        tile = uint32(cuda.blockIdx.x) * EXTREMES_THREADS + uint32(cuda.threadIdx.x)
        if tile < uint32(tiles_down * tiles_along):
            i, j = uint64(tile // tiles_along), uint64(tile % tiles_along)
            at = tile * 4
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

    parameters = *(uint64,) * 8, *(uint32,) * 3
    name = f"{'zero points' if given_scales else 'scales'} of tiles: {conversion}"
    return Kernel(name, make, *parameters, threads=EXTREMES_THREADS, early=True)


@family(tried((True, False)))
def encode_kernel(kind: str, conversion: Conversion, wide: bool) -> Kernel:
    """The kernel for codes under scales, a piece a thread; 2**``shift`` threads of a block are on one row."""
    size, per = SIZES[kind], floats_per_load(kind, wide)
    load, load_scale, store = loading(kind, wide), scale_loading(conversion), storing(conversion, per)
    place_piece = piece_placer(per)
    prepare, divide = divider(CODES[conversion.code], conversion.zeros, conversion.scale, per)
    code_size, has_zeros, start_dependent = conversion.size, conversion.zeros, hopper.take_turn

    def encode(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, r: Any, c: Any, shift: Any, first: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        row, column = place_piece(shift, first)
        if row < rows and column < columns:
            v = cuda.local.array(per, float32)
            load(address(x, row, pitch, column, size), v, 0)
            i, j = uint64(row // r), uint64(column // c)
            s = load_scale(scales + i * down + j * along)
            zero = int32(0)
            if has_zeros:
                zero = int32(ptx.load4(zeros + i * zeros_down + j * zeros_along))
            divide(v, s, prepare(s))
            store(address(codes, row, columns, column, code_size), v, 0, zero)

    name = f"{kind} to {conversion}, {per} a thread"
    parameters = *MATRIX_PARAMETERS, *(uint32,) * 5
    return Kernel(name, encode, *parameters, threads=PIECE_THREADS, least=conversion.least, early=True)
