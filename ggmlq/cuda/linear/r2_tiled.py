"""Tiles in shared memory: a weight is decoded once for 16 rows of activations.

Changed: a block of threads first decodes 16 rows of weights, 32 codes each, into shared memory with
as many codes of activations beside them; then every thread works from there. Decoding and traffic
shrink 16 times. Zeros are taken off the codes themselves and sums are of the codes (arithmetic q8),
so every block format is served, with its offsets.

Limited by shared memory: two loads of a byte for one multiplication.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats.packing import packing
from ..activations.code_tiles import activations
from ..intrinsics.atoms import atoms
from ..intrinsics.language import cuda, float32, int8, int32, uint8
from ..machine.launch import Kernel, array, family
from .r0_naive_f32 import SIDE, refuses

STEP = 32  # columns of a tile: a run of activations
TILE = (SIDE, STEP + 4)  # padded: rows start in different banks


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
        row = min(cuda.blockIdx.x * SIDE + ty, y.shape[1] - 1)  # of weights, decoded by this thread
        total = float32(0)
        for column in range(0, w.shape[1] * size, STEP):
            block, first = w[row, column // size], column % size
            for i in range(tx, STEP, SIDE):
                codes[ty, i] = int8(code(block, first + i))
                codes8[ty, i] = x[m, column + i]
            if tx < runs:
                scales[ty, tx] = scale(block, (first + tx * run) // group)
                offsets[ty, tx] = offset(block, (first + tx * run) // group)
            cuda.syncthreads()
            for r in range(runs):
                dot, code_sum = int32(0), int32(0)
                for i in range(r * run, (r + 1) * run):
                    dot = int32(dot + int32(codes[tx, i]) * int32(codes8[ty, i]))
                    code_sum = int32(code_sum + int32(codes8[ty, i]))
                part = scales[tx, r] * float32(dot)
                if has_offset:
                    part -= offsets[tx, r] * float32(code_sum)
                total += d[column // STEP, m] * part
            cuda.syncthreads()
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = total

    parameters = (array(int8, 2), array(float32, 2), array(uint8, 3), array(float32, 2))
    return Kernel(f"tiled {fmt.name}", tiled, *parameters, threads=SIDE * SIDE)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, (n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    a = activations(x, STEP)
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (-(-n // SIDE), -(-len(x) // SIDE))
    kernel(fmt)(grid, (SIDE, SIDE), a.codes, a.scale, blocks, out)
