"""Activations as code tiles: bytes with a scale for each 32, in the order in which ``mma`` takes them.

    code tiles  [steps of 64 columns][rows, eight by eight][bytes of eight rows]
    eight rows  [row g][t][sixteen s of columns][4 codes], then [t][32 columns][row 2 t, 2 t + 1] scales, then
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
from ..intrinsics import hopper, ptx
from ..intrinsics.codes8 import four_bytes, four_codes
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.lane import ALL_LANES, address
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from .floats import four_loader
from .layout import STEP, PackedLayout
from .x_tiles import readable_rows

EIGHT, SCALED = 8, 32  # rows of activations that lie together; columns with one scale
CODES, SCALES = EIGHT * STEP, 4 * EIGHT * STEP // SCALED  # bytes of eight rows


def sum_run(layout: PackedLayout) -> int:
    """The columns whose activations are summed; 0 where weights have no offsets."""
    return layout.run if layout.has_offset else 0


def eight_bytes(run: int) -> int:
    """Bytes of eight rows of a step; ``run``: of ``sum_run``."""
    return CODES + SCALES + (4 * EIGHT * STEP // run if run else 0)


THREADS = 256  # of a block


@family((kind, run) for kind in KINDS for run in (0, 16, 32))
def code_tile_kernel(kind: str, run: int) -> Kernel:
    """The kernel that makes code tiles: eight threads serve 32 neighbours, four each."""
    load, size, length = four_loader(kind), KINDS[kind], eight_bytes(run)
    store4, store_float, take_turn = ptx.store4, ptx.store_float, hopper.take_turn
    mul = ptx.mul
    steps, sums_at, each = (2, 1) if run == 16 else (4, 2, 1), CODES + SCALES, run or STEP
    pair_bytes = 8 * STEP // each

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
        coded = four_codes(v0, v1, v2, v3)
        total = int32(0)
        if run:
            total = int32(int32(coded.q0 + coded.q1) + int32(coded.q2 + coded.q3))
            for step in steps:
                total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
        if column < columns:
            place = address(tiles, column // STEP, eights, row // EIGHT, length)
            g, four = row & EIGHT - 1, uint32(column >> 2) & 15
            at = uint32(g * STEP + (four & 3) * 16 + (four >> 2) * 4)
            store4(place + at, four_bytes(coded.q0, coded.q2, coded.q1, coded.q3))
            pair, odd, within = g >> 1, (g & 1) * 4, column & STEP - 1
            if within % SCALED == 0:
                at = pair * 16 + within // SCALED * 8 + odd
                store_float(place + uint64(CODES + at), coded.scale)
            if run and within % each == 0:
                at = pair * pair_bytes + within // each * 8 + odd
                store_float(place + uint64(sums_at + at), mul(coded.scale, float32(total)))

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
