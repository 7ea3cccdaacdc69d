"""Quantizes floats with a scale for each 16 to 512 columns of a row: a few lanes of a warp hold such a group.

    block    8 rows × 512 columns at a time, a warp a row; a group of 128 is 8 lanes
    lane     16 floats: 2 pieces of 16-bit ones or 4 of float32, the lanes of a group side by side in each, so
             that what a warp loads and stores in one instruction is whole sectors of memory
    turns    a warp loads two rows of 16-bit floats at once, so that a lane awaits 64 bytes, as of float32;
             one where rows are too few for blocks on all multiprocessors

All loads are issued before the first is used. A group never leaves the registers: shuffles among its
lanes find the largest magnitude, each lane computes scale and inverse itself. The scales of a block's 8
rows fill a sector where scales run down columns.

Limited by memory: 3.03 bytes an element of 16 bits, and about 10 instructions.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...codes import CODES
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from ._codes import WORDS, Conversion, keeps_nan_of, scale_storing, scaler, storing, zero_of
from ._division import divider
from ._loads import SIZES, agreeing, extremes, floats_per_load, spreading, words_into

EACH, ROWS, COLUMNS = 16, 8, 512  # floats of a lane; rows and columns that a block has at a time
TURNS = {"float16": 2, "bfloat16": 2, "float32": 1}  # rows that a warp loads at once, if codes are quick
THREADS = 32 * ROWS
GROUPS = (128, 16, 32, 64, 256, 512)  # columns of a group


def conversions() -> Any:
    """All conversions from floats to codes."""
    for code, scale in product(CODES.values(), ("float32", "e8m0")):
        if code.kind == "scale":
            continue
        natives = (False, True) if code.name in WORDS else (False,)
        shifts = (False, True) if code.kind == "integer" and code.min != -code.max else (False,)
        for native, rounding, zeros in product(natives, code.roundings, shifts):
            yield Conversion(code.name, scale, rounding, zeros, native)


def turns_of(kind: str, conversion: Conversion) -> int:
    """Rows that a warp loads before it uses the first: 1 or 2."""
    quick = conversion.native or (CODES[conversion.code].kind == "integer" and not conversion.zeros)
    return TURNS[kind] if quick else 1


USUAL = Conversion("e4m3", "float32", "half_even", False, True)


def tried(shapes: Any) -> Any:
    """The cases of a family: each kind of floats with each shape, each conversion from float16."""
    yield from ((kind, USUAL, shape) for kind, shape in product(SIZES, shapes))
    yield from (("float16", conversion, shapes[0]) for conversion in conversions())


@family(tried(GROUPS))
def kernel(kind: str, conversion: Conversion, columns_of_group: int, few: bool = False) -> Kernel:
    """The kernel for groups of a length; ``few``: a warp has one row at a time."""
    size, per = SIZES[kind], floats_per_load(kind, True)
    loads, lanes, group = EACH // per, columns_of_group // EACH, columns_of_group
    turns = 1 if few else turns_of(kind, conversion)
    spread, widen = spreading(kind), extremes(EACH, conversion.zeros, keeps_nan_of(conversion))
    agree = agreeing(lanes, conversion.zeros, keeps_nan_of(conversion))
    raw, all_raw = 4 * loads, 4 * loads * turns  # words of a turn, and of all
    scale_of, zero = scaler(conversion), zero_of(conversion)
    prepare, divide = divider(CODES[conversion.code], conversion.zeros, conversion.scale, EACH)
    store, store_scale, store4 = storing(conversion, per), scale_storing(conversion), ptx.store4
    code_size, has_zeros, take_turn = conversion.size, conversion.zeros, dependent_launch.take_turn

    def quantize(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # bytes from a scale to the one below, and to the next in a row
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, eps: Any, first: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        level = uint32(uint32(cuda.blockIdx.y) + first)
        row0 = uint32(level * uint32(ROWS * turns) + uint32(thread >> uint32(5)))
        start = uint32(uint32(cuda.blockIdx.x) * uint32(COLUMNS) + lane // uint32(lanes) * uint32(group))
        part = uint32(lane % uint32(lanes))
        column = uint32(start + part * uint32(per))
        words, v = cuda.local.array(all_raw, uint32), cuda.local.array(EACH, float32)
        for t in range(turns):
            for w in range(raw):
                words[t * raw + w] = uint32(0)
            row = uint32(row0 + uint32(t * ROWS))
            if row < rows and start < columns:
                at = address(x, row, pitch, column, size)
                for p in range(loads):
                    words_into(words, t * raw + 4 * p, at + uint64(p * lanes * 16))
        for t in range(turns):
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
                if part == uint32(0):
                    i, j = uint64(row), uint64(start // uint32(group))
                    store_scale(scales + i * uint64(down) + j * uint64(along), s)
                    if has_zeros:
                        store4(zeros + i * uint64(zeros_down) + j * uint64(zeros_along), uint32(z))

    long, word = uint64, uint32
    parameters = (long, long, long, word, long, long, long, long, long, long, word, word, word)
    name = f"groups of {group} {kind} to {conversion}{', few' * few}"
    return Kernel(name, quantize, *parameters, threads=THREADS, blocks=4, least=conversion.least, early=True)
