"""dp4a: four multiplications and additions in one instruction.

Changed: tiles again, now of words of four unpacked codes, and a thread multiplies words. A
tile spans 64 columns, so that a thread has 16 dp4a between barriers.

Limited by shared memory: each dp4a still needs two loads, and the load unit gives 32 words a clock
where the integer unit could take 64.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ...driver.launch import Kernel, array, family
from ...intrinsics import ptx
from ...intrinsics.language import cuda, float32, int32
from ...layouts.unpacked import activations, compensate, refuses, unpacked_weights

SIDE, WORDS = 16, 16  # a tile: rows of either operand, words of four codes
TILE, PADDED = (SIDE, WORDS), (SIDE, WORDS + 1)  # padded: a column lies in 16 banks

# Who computes what: a block of 16 × 16 threads has 16 × 16 outputs, 64 columns of K (16 words) a step.
#
#     1. thread (x, y) copies word x of row y of either tile     (16 neighbours of a row: one piece of memory)
#     2. thread (x, y) multiplies row y of codes8 with row x of codes, for output [m + y, n + x]
#
#        codes8  [16 rows of x, 16 words]        codes  [16 rows of w, 16 words + 1]
#        row y   w w w w w w w w w w w w  …      row x  w w w w w w w w w w w w  …  (unused)
#                |- a run: dot += dp4a -|               |- a run: 4 or 8 words -|
#
# Banks: 16 lanes with different x read word i of 16 rows of ``codes`` at once. Rows of 16 words would begin
# in banks 0 and 16 alone, and eight lanes would wait for each other; with 17 words each row begins one bank
# further. ``codes8`` needs no padding: those lanes all read the same word of it.


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
            # Rows are filled up to multiples of 128: no word lies outside, and none is checked.
            codes8[ty, tx] = x[m, first + tx]
            codes[ty, tx] = w[row, first + tx]
            cuda.syncthreads()  # the tiles are whole: each thread multiplies what others copied
            for r in range(WORDS // words):
                dot = int32(0)
                # Four bytes with four bytes, and the sum so far: one instruction for four products.
                for i in range(r * words, (r + 1) * words):
                    dot = dp4a(codes8[ty, i], codes[tx, i], dot)
                a, b = dx[(first + r * words) // 8, m], dw[first // words + r, n]
                total += a * (b * float32(dot))
            cuda.syncthreads()  # nobody reads the tiles any more: the next step may write them
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
    compensate(out, a, w)  # takes the offsets off, for formats that have them
