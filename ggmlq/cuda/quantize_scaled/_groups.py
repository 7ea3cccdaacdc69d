"""Groups of one row, 16 to 512 columns: some neighbouring lanes of a warp hold one, 16 floats each.

    block    8 rows × 512 columns, a warp a row; a group of 128 is 8 lanes
    lane     2 pieces of 16-bit floats or 4 of float32, the lanes of a group side by side in each, so that
             what a warp loads and stores in one instruction is whole sectors of memory

All loads are issued before the first is used. A group never leaves the registers: shuffles among its
lanes find the largest magnitude, each lane computes scale and inverse itself. The scales of a block's 8
rows fill a sector where scales run down columns.

Limited by memory: 3.03 bytes an element of 16 bits, and about 9 instructions.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...codes import CODES
from ..machine.launch import Kernel, family
from ..words import early_start, ptx
from ..words.address import address
from ..words.language import cuda, float32, uint32, uint64
from ._codes import WORDS, Way, scale_storing, scaler, storing, zero_of
from ._division import divider
from ._pieces import SIZES, agreeing, extremes, in_piece, loading

EACH, ROWS, COLUMNS = 16, 8, 512  # floats a thread; of a block
THREADS = 32 * ROWS
GROUPS = (16, 32, 64, 128, 256, 512)  # columns of a group


def ways(kinds: Any = SIZES) -> Any:
    """All kinds of floats with all ways from them to codes."""
    for kind, code, scale in product(kinds, CODES.values(), ("float32", "e8m0")):
        if code.kind == "scale":
            continue
        natives = (False, True) if code.name in WORDS else (False,)
        shifts = (False, True) if code.kind == "integer" and code.min != -code.max else (False,)
        for native, rounding, zeros in product(natives, code.roundings, shifts):
            yield kind, Way(code.name, scale, rounding, zeros, native)


@family((kind, way, columns) for kind, way in ways() for columns in GROUPS)
def kernel(kind: str, way: Way, columns_of_group: int) -> Kernel:
    """The kernel for groups of so many columns."""
    size, per = SIZES[kind], in_piece(kind, True)
    pieces, lanes, group = EACH // per, columns_of_group // EACH, columns_of_group
    load, widen, agree = loading(kind, True), extremes(EACH, way.zeros), agreeing(lanes, way.zeros)
    scale_of, zero = scaler(way), zero_of(way)
    prepare, divide = divider(CODES[way.code], way.zeros, way.scale, EACH)
    store, store_scale, store4 = storing(way, per), scale_storing(way), ptx.store4
    code_size, has_zeros, take_turn = way.size, way.zeros, early_start.take_turn

    def quantize(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, eps: Any, first: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        level = uint32(uint32(cuda.blockIdx.y) + first)
        row = uint32(level * uint32(ROWS) + uint32(thread >> uint32(5)))
        start = uint32(uint32(cuda.blockIdx.x) * uint32(COLUMNS) + lane // uint32(lanes) * uint32(group))
        part = uint32(lane % uint32(lanes))
        live = row < rows and start < columns
        column = uint32(start + part * uint32(per))
        v = cuda.local.array(EACH, float32)
        if live:
            at = address(x, row, pitch, column, size)
            for p in range(pieces):
                load(at + uint64(p * lanes * 16), v, p * per)
        else:
            for i in range(EACH):
                v[i] = float32(0)
        high, low = widen(v, float32(0), float32(0))
        high, low = agree(high, low)
        s = scale_of(high, low, ptx.float_of(eps))
        z = zero(low, s)
        divide(v, s, prepare(s))
        if live:
            to = address(codes, row, columns, column, code_size)
            for p in range(pieces):
                store(to + uint64(p * lanes * per * code_size), v, p * per, z)
            if part == uint32(0):
                tile = uint32(start // uint32(group))
                store_scale(scales + uint64(row) * uint64(down) + uint64(tile) * uint64(along), s)
                if has_zeros:
                    down_to = zeros + uint64(row) * uint64(zeros_down)
                    store4(down_to + uint64(tile) * uint64(zeros_along), uint32(z))

    long, word = uint64, uint32
    parameters = (long, long, long, word, long, long, long, long, long, long, word, word, word)
    name = f"groups of {group} {kind} to {way}"
    return Kernel(name, quantize, *parameters, threads=THREADS, blocks=5, least=way.least, early=True)
