"""Tiles in shared memory: a weight is decoded once for 16 rows of activations.

Changed: a block of threads first decodes 16 rows of weights, 32 codes each, into shared memory with
as many codes of activations beside them; then every thread works from there. Decoding and traffic
shrink 16 times. Zeros are taken off the codes themselves and sums are of the codes (arithmetic q8),
so every block format is served, with its offsets.

Limited by shared memory: two loads of a byte for one multiplication.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BLOCK_FORMATS, BlockFormat
from ....formats.packing import packing
from ...driver.launch import Kernel, array, family
from ...intrinsics.atoms import atoms
from ...intrinsics.language import cuda, float32, int8, int32, uint8
from ...layouts.unpacked import activations

SIDE = 16  # of a block of threads, and of its outputs
STEP = 32  # columns of a tile: a run of activations
TILE = (SIDE, STEP + 4)  # bytes: the padding is one bank of 4, so rows start in different ones

# Who computes what: a block of 16 × 16 threads has 16 × 16 outputs, and makes them 32 columns of K a step.
#
#     1. all decode, thread (x, y) columns x and x + 16 of row y of either tile:
#
#          codes   [16 rows of w, 32]        scales, offsets [16, runs of the step]
#          codes8  [16 rows of x, 32]
#
#     2. all multiply, thread (x, y) row x of ``codes`` with row y of ``codes8``, for output [m + y, n + x]:
#
#                  codes8                 codes (row x)
#                  row y   . . . . . . →  . . . . . . →       dot over a run, then one scaling
#
# Each code is decoded once and read 16 times, by the threads of a column of outputs.
#
# Banks: 16 lanes of a warp have different x, and read byte i of 16 rows at once. A row of 32 bytes would be 8
# banks, so rows 0, 4, 8, 12 would begin in the same one and wait for each other; 36 bytes are 9 banks, and
# 9 x mod 32 differs for all 16. The other tile all 16 lanes read at the same place, which costs nothing.


@family((fmt,) for fmt in BLOCK_FORMATS)
def kernel(fmt: BlockFormat) -> Kernel:
    code, scale, offset = atoms(fmt)
    size, group, run = fmt.block_size, fmt.group, packing(fmt).run
    runs, has_offset, by_run = STEP // run, fmt.has_offset, (SIDE, STEP // run)

    def tiled(
        x: Any,  # int8 [rows of whole tiles, k']
        d: Any,  # float32 [k' / 32, rows of whole tiles]
        w: Any,  # uint8 [n, blocks of a row, bytes of a block]
        y: Any,  # float32 [m, n]
    ) -> None:
        codes = cuda.shared.array(TILE, int8)
        codes8 = cuda.shared.array(TILE, int8)
        scales = cuda.shared.array(by_run, float32)
        offsets = cuda.shared.array(by_run, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        n, m = cuda.blockIdx.x * SIDE + tx, cuda.blockIdx.y * SIDE + ty
        # Of weights, decoded by this thread. Behind the last row it decodes that once more, and does not
        # leave: all threads of a block must come to each barrier.
        row = min(cuda.blockIdx.x * SIDE + ty, y.shape[1] - 1)
        total = float32(0)
        for column in range(0, w.shape[1] * size, STEP):
            block, first = w[row, column // size], column % size
            for i in range(tx, STEP, SIDE):
                codes[ty, i] = int8(code(block, first + i))
                codes8[ty, i] = x[m, column + i]
            if tx < runs:
                scales[ty, tx] = scale(block, (first + tx * run) // group)
                offsets[ty, tx] = offset(block, (first + tx * run) // group)
            cuda.syncthreads()  # the tiles are whole: each thread reads what others decoded
            for r in range(runs):
                # A format with offsets has w = s · code - o, so the codes of x are added up as well.
                dot, code_sum = int32(0), int32(0)
                for i in range(r * run, (r + 1) * run):
                    dot = int32(dot + int32(codes[tx, i]) * int32(codes8[ty, i]))
                    code_sum = int32(code_sum + int32(codes8[ty, i]))
                part = scales[tx, r] * float32(dot)
                if has_offset:
                    part -= offsets[tx, r] * float32(code_sum)
                total += d[column // STEP, m] * part
            cuda.syncthreads()  # nobody reads the tiles any more: the next step may write them
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = total

    parameters = (array(int8, 2), array(float32, 2), array(uint8, 3), array(float32, 2))
    return Kernel(f"tiled {fmt.name}", tiled, *parameters, threads=SIDE * SIDE)


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > SIDE * 65535:  # a grid has 65535 rows of blocks, at most
        return f"takes up to {SIDE * 65535} rows of activations"
    return None


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, (n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    a = activations(x, STEP)  # its rows are filled up to whole tiles, so x is read without a check
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (-(-n // SIDE), -(-len(x) // SIDE))
    kernel(fmt)(grid, (SIDE, SIDE), a.codes, a.scale, blocks, out)
