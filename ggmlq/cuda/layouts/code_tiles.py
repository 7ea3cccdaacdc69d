"""Activations as code tiles: bytes with a scale for each 32, in the order in which ``mma`` takes them.

    code tiles  [steps of 64 columns][rows, eight by eight][bytes of eight rows]
    eight rows  [row g][t][step s of 16 columns][4 codes], then [t][32 columns][row 2 t, 2 t + 1] scales, then
                the same of sums, by run, where weights have offsets

Codes and scales are those of the arithmetic ``q8``. The four codes are those of columns 4 t,
4 t + 2, 4 t + 1, 4 t + 3 (layouts/codes.py). So neighbouring rows of a step are one piece of memory, a
lane takes all its codes of a row with one load of 16 bytes, and its scales with another. Columns beyond K are
zeros. Rows beyond M hold anything; their sums are never read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.slots import rows_of
from ..driver.launch import Kernel, family
from ..driver.recorded import across, between
from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes import four_bytes, largest_size, size_of
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.lane import ALL_LANES, address
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from .floats import four_loader
from .groups import NAN, NOWHERE
from .layout import STEP, PackedLayout
from .x_tiles import readable_rows

# The kernel that copies rows of 8-bit codes of x to the places of their uses in a plan (layouts/groups.py).
#
# A row of codes is read once and written for each of its uses, 64 bytes a thread. So are the words that
# belong to it: scales of its groups along K or, for integers, its scale and its zero-point terms. Rows of the
# plan without a use hold anything; their sums are never read. Where each row has one use, and uses are in
# order, rows stay where they are, and only those words are written.

EIGHT, SCALED = 8, 32  # rows of activations that lie together; columns with one scale
CODES, SCALES = EIGHT * STEP, 4 * EIGHT * STEP // SCALED  # bytes of eight rows

GATHER_THREADS = 256
CHUNK, CHUNKS = 16, 4  # codes that are loaded at a time; of a thread
WORDS = CHUNKS * CHUNK // 4
NARROW_NAN = 0x7FFF  # of float16 and of bfloat16


def sum_run(layout: PackedLayout) -> int:
    """The columns whose activations are summed; 0 where weights have no offsets."""
    return layout.run if layout.has_offset else 0


def eight_bytes(run: int) -> int:
    """Bytes of eight rows of a step; ``run``: of ``sum_run``."""
    return CODES + SCALES + (4 * EIGHT * STEP // run if run else 0)


@family()
def gatherer() -> Kernel:
    """The kernel that gathers rows of codes and the words beside them; uses without an expert get rows of
    NaN.
    """
    load_words, load4, take_turn = codes.load_words, codes.load4, dependent_launch.take_turn
    store16, store4, store2 = ptx.store16, ptx.store4, ptx.store2

    def gather(
        x: Any,  # codes: rows ``pitch`` bytes apart, a multiple of 16
        to: Any,  # uint8 [rows of the plan, 16 · chunks]
        beside: Any,  # words of 32 bits that belong to rows,
        row_bytes: Any, column_bytes: Any,  # and the bytes between them
        to_beside: Any,  # [columns, height]
        plan: Any, places: Any,  # uint32 [m · per_token]: of the plan
        y: Any,  # outputs [m · per_token, n]
        pitch: Any, m: Any, per_token: Any, n: Any, chunks: Any,
        threads: Any,  # of a row, and the distance between a thread's chunks
        size: Any,  # bytes of an output
        shared: Any,  # rows of x that share the words beside them
        columns: Any, height: Any,  # rows of the plan
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * GATHER_THREADS + uint32(cuda.threadIdx.x))
        row = uint32(i // threads)
        if row < m:
            first_chunk, v = uint32(i - uint32(row * threads)), cuda.local.array(WORDS, uint32)
            stay = per_token == 1 and load4(plan + 4) != 0
            if not stay:
                for q in range(CHUNKS):
                    chunk = min(uint32(first_chunk + uint32(uint32(q) * threads)), uint32(chunks - 1))
                    words = load_words(x + uint64(row) * pitch + uint64(chunk) * CHUNK)
                    at = 4 * q
                    v[at], v[at + 1], v[at + 2], v[at + 3] = words[0], words[1], words[2], words[3]
            row_beside = beside + uint32(row // shared) * row_bytes
            use = uint32(row * per_token)
            end = uint32(use + per_token)
            while use < end:
                column = load4(places + uint64(use) * 4)
                if column != NOWHERE:
                    if not stay:
                        for q in range(CHUNKS):
                            chunk, at = uint32(first_chunk + uint32(uint32(q) * threads)), 4 * q
                            if chunk < chunks:
                                target = address(to, column, chunks, chunk, CHUNK)
                                store16(target, v[at], v[at + 1], v[at + 2], v[at + 3])
                    for j in range(first_chunk, columns, threads):
                        word = load4(row_beside + j * column_bytes)
                        store4(address(to_beside, j, height, column, 4), word)
                else:
                    for j in range(first_chunk, n, threads):
                        if size == 2:
                            store2(address(y, use, n, j, 2), uint32(NARROW_NAN))
                        else:
                            store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + 1)

    return Kernel(
        "rows of codes of experts", gather, *(uint64,) * 9, *(uint32,) * 10,
        threads=GATHER_THREADS, early=True,
    )  # fmt: skip


THREADS, STEP = 256, 64  # of a block; columns


@family((kind, run) for kind in KINDS for run in (0, 16, 32))
def code_tile_kernel(kind: str, run: int) -> Kernel:
    """The kernel that makes code tiles: eight threads serve 32 neighbours, four each."""
    load, size, length = four_loader(kind), KINDS[kind], eight_bytes(run)
    store4, store_float, take_turn = ptx.store4, ptx.store_float, dependent_launch.take_turn
    mul, div, nearest_even = ptx.mul, ptx.div, ptx.nearest_even
    steps, sums_at, each = (2, 1) if run == 16 else (4, 2, 1), CODES + SCALES, run or STEP
    pair_bytes = 8 * STEP // each

    @inlined
    def code(value: Any, per: Any) -> Any:
        return min(max(nearest_even(mul(value, per)), int32(-127)), int32(127))

    def make(
        x: Any,  # of the kind [m, k]
        tiles: Any,  # uint8 [columns / 64, eights, bytes of eight rows]
        k: Any, columns: Any, eights: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(uint32(cuda.blockIdx.y) * THREADS + uint32(cuda.threadIdx.x))
        column, row = uint32(thread * 4), uint32(cuda.blockIdx.x)
        v0 = v1 = v2 = v3 = float32(0)
        if column < k:
            v0, v1, v2, v3 = load(address(x, row, k, column, size))
        largest = largest_size(v0, v1, v2, v3)
        d, per = div(largest, float32(127)), div(float32(127), largest)
        if size_of(largest) == 0:
            per = float32(0)
        q0, q1, q2, q3 = code(v0, per), code(v1, per), code(v2, per), code(v3, per)
        total = int32(0)
        if run:
            total = int32(int32(q0 + q1) + int32(q2 + q3))
            for step in steps:
                total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
        if column < columns:
            place = address(tiles, column // STEP, eights, row // EIGHT, length)
            g, four = row & EIGHT - 1, uint32(column >> 2) & 15
            at = uint32(g * STEP + (four & 3) * 16 + (four >> 2) * 4)
            store4(place + at, four_bytes(q0, q2, q1, q3))
            pair, odd, within = g >> 1, (g & 1) * 4, column & STEP - 1
            if within % SCALED == 0:
                at = pair * 16 + within // SCALED * 8 + odd
                store_float(place + uint64(CODES + at), d)
            if run and within % each == 0:
                at = pair * pair_bytes + within // each * 8 + odd
                store_float(place + uint64(sums_at + at), mul(d, float32(total)))

    parameters = (uint64, uint64, uint32, uint32, uint32)
    sums = f" with sums of {run}" if run else ""
    return Kernel(
        f"{kind} to code tiles{sums}", make, *parameters, threads=THREADS, least=LEAST["bfloat16"], early=True
    )


def code_tiles_of(x: Any, steps: int, rows: int, run: int) -> Any:
    """The code tiles of rows of floats, in whole tiles of ``rows``."""
    (x, kind), m, k = readable_rows(x), rows_of(x), x.shape[1]
    eights, columns = across(m, rows) * rows // EIGHT, steps * STEP
    tiles = between((steps, eights, eight_bytes(run)), np.uint8)
    grid = (m, -(-columns // (4 * THREADS)))
    code_tile_kernel(kind, run)(grid, (THREADS,), x, tiles, k, columns, eights)
    return tiles
