"""Activations as code tiles: bytes with a scale for each 32, in the order in which ``mma`` takes them.

    code tiles  [steps of 64 columns][rows, eight by eight][bytes of eight rows]
    eight rows  [row g][t][step s of 16 columns][4 codes], then [t][32 columns][row 2 t, 2 t + 1] scales, then
                the same of sums, by run, where weights have offsets

Codes and scales are those of the arithmetic ``q8`` (int8.py). The four codes are those of columns 4 t,
4 t + 2, 4 t + 1, 4 t + 3 (packed/byte_codes.py). So neighbouring rows of a step are one piece of memory, a
lane takes all its codes of a row with one load of 16 bytes, and its scales with another. Columns beyond K are
zeros. Rows beyond M hold anything; their sums are never read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, codes, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.codes import four_bytes, size_of
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..rings.mma_tile import CODES, EIGHT, SCALED, SCALES, eight_bytes
from .int8 import largest_size
from .x_tiles import readable_rows

THREADS, STEP = 256, 64  # of a block; columns


@cache
def four_loader(kind: str) -> Any:
    """The device function that loads four values of a kind as float32."""
    load_floats, load8, half_values, float_of = ptx.load_floats, bf16x2.load8, codes.half_values, ptx.float_of
    upper = 0xFFFF0000

    @inlined
    def load(at: Any) -> Any:
        return load_floats(at)

    @inlined
    def load_halves(at: Any) -> Any:
        pairs = load8(at)
        a, b = half_values(pairs[0]), half_values(pairs[1])
        return a[0], a[1], b[0], b[1]

    @inlined
    def load_bfloats(at: Any) -> Any:
        pairs = load8(at)
        a, b = pairs[0], pairs[1]
        return (
            float_of(uint32(a << uint32(16))), float_of(uint32(a & uint32(upper))),
            float_of(uint32(b << uint32(16))), float_of(uint32(b & uint32(upper))),
        )  # fmt: skip

    return {"float32": load, "float16": load_halves, "bfloat16": load_bfloats}[kind]


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
        thread = uint32(uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        column, row = uint32(thread * uint32(4)), uint32(cuda.blockIdx.x)
        v0 = v1 = v2 = v3 = float32(0)
        if column < k:
            v0, v1, v2, v3 = load(address(x, row, k, column, size))
        largest = largest_size(v0, v1, v2, v3)
        d, per = div(largest, float32(127)), div(float32(127), largest)
        if size_of(largest) == uint32(0):
            per = float32(0)
        q0, q1, q2, q3 = code(v0, per), code(v1, per), code(v2, per), code(v3, per)
        total = int32(0)
        if run:
            total = int32(int32(q0 + q1) + int32(q2 + q3))
            for step in steps:
                total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
        if column < columns:
            place = address(tiles, column // uint32(STEP), eights, row // uint32(EIGHT), length)
            g, four = row & uint32(EIGHT - 1), uint32(column >> uint32(2)) & uint32(15)
            at = uint32(g * uint32(STEP) + (four & uint32(3)) * uint32(16) + (four >> uint32(2)) * uint32(4))
            store4(place + uint64(at), four_bytes(q0, q2, q1, q3))
            pair, odd, within = g >> uint32(1), (g & uint32(1)) * uint32(4), column & uint32(STEP - 1)
            if within % uint32(SCALED) == uint32(0):
                at = pair * uint32(16) + within // uint32(SCALED) * uint32(8) + odd
                store_float(place + uint64(uint32(CODES) + at), d)
            if run and within % uint32(each) == uint32(0):
                at = pair * uint32(pair_bytes) + within // uint32(each) * uint32(8) + odd
                store_float(place + uint64(uint32(sums_at) + at), mul(d, float32(total)))

    parameters = (uint64, uint64, uint32, uint32, uint32)
    sums = f" with sums of {run}" if run else ""
    return Kernel(
        f"{kind} to code tiles{sums}", make, *parameters, threads=THREADS, least=LEAST["bfloat16"], early=True
    )


def code_tiles_of(x: Any, steps: int, rows: int, run: int) -> Any:
    """The code tiles of rows of floats, in whole tiles of ``rows``."""
    x, kind = readable_rows(x)
    m, k = x.shape
    eights, columns = -(-m // rows) * rows // EIGHT, steps * STEP
    tiles = between((steps, eights, eight_bytes(run)), np.uint8)
    grid = (m, -(-columns // (4 * THREADS)))
    code_tile_kernel(kind, run)(grid, (THREADS,), x, tiles, k, columns, eights)
    return tiles
