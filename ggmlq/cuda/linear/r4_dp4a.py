"""dp4a: four multiplications and additions in one instruction.

Changed: tiles again, now of words of four unpacked codes, and a thread multiplies words. A
tile spans 64 columns, so that a thread has 16 dp4a between barriers.

Limited by shared memory: each dp4a still needs two loads, and the load unit gives 32 words a clock
where the integer unit could take 64.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ..activations.code_tiles import activations
from ..intrinsics import ptx
from ..intrinsics.language import cuda, float32, int32
from ..machine.launch import Kernel, array, family
from ..packed.unpacked import compensate, refuses, unpacked_weights

SIDE, WORDS = 16, 16  # a tile: rows of either operand, words of four codes
TILE, PADDED = (SIDE, WORDS), (SIDE, WORDS + 1)  # padded: a column lies in 16 banks


@family((run,) for run in (16, 32))
def kernel(run: int) -> Kernel:
    dp4a, words = ptx.dp4a, run // 4

    def dp4a_tiles(
        x: Any,  # int32 [m_rows, k / 4]
        dx: Any,  # float32 [k / 32, m_rows]
        w: Any,  # int32 [n_rows, k / 4]
        dw: Any,  # float32 [k / run, n_rows]
        y: Any,  # float32 [m, n]
    ) -> None:
        codes8 = cuda.shared.array(TILE, int32)
        codes = cuda.shared.array(PADDED, int32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        n, m = cuda.blockIdx.x * SIDE + tx, cuda.blockIdx.y * SIDE + ty
        row = cuda.blockIdx.x * SIDE + ty
        total = float32(0)
        for first in range(0, x.shape[1], WORDS):
            codes8[ty, tx] = x[m, first + tx]
            codes[ty, tx] = w[row, first + tx]
            cuda.syncthreads()
            for r in range(WORDS // words):
                dot = int32(0)
                for i in range(r * words, (r + 1) * words):
                    dot = dp4a(codes8[ty, i], codes[tx, i], dot)
                a, b = dx[(first + r * words) // 8, m], dw[first // words + r, n]
                total += a * (b * float32(dot))
            cuda.syncthreads()
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = total

    parameters = (array(int32, 2), array(float32, 2), array(int32, 2), array(float32, 2), array(float32, 2))
    return Kernel(f"dp4a, runs of {run}", dp4a_tiles, *parameters, threads=SIDE * SIDE)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run)
    m, n = out.shape
    grid = (-(-n // SIDE), -(-m // SIDE))
    kernel(w.run)(grid, (SIDE, SIDE), a.codes.view("i4"), a.scale, w.codes.view("i4"), w.scale, out)
    compensate(out, a, w)
