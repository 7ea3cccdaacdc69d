"""Register blocking: a thread makes 8 × 8 outputs of the words that it loads.

Changed: a tile is 128 × 128 outputs, and a thread computes 64 dp4a from eight words of either operand.
So it loads one word of shared memory for four dp4a, not two for one. Words lie by column in
shared memory, so that four neighbours come with one load; while one tile is multiplied, the next is
in flight into the other half of the memory.

Limited by the integer unit: it takes a dp4a every other clock, and each sum must still be scaled.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.unpacked import activations, compensate, refuses, unpacked_weights

SIDE, THREADS, THREAD_SIDE = 128, 256, 8  # a tile's side, of 16 × 16 threads with 8 × 8 outputs each
THREAD_OUTPUTS = THREAD_SIDE * THREAD_SIDE
WORDS = 8  # of four codes: a tile spans 32 columns
HALF = SIDE * WORDS * 4  # bytes of one operand's tile

# Who computes what: a block of 256 threads has 128 × 128 outputs, a thread 8 × 8 of them, in four pieces.
#
#                   columns of y: rows of w                threads lie 16 × 16: tx, ty = 4 · (0 … 15)
#                 n0     tx      64     64 + tx
#            m0  +------+----+--+------+----+--+
#                |      |    |  |      |    |  |           a[8]: words of rows ty … ty + 3, 64 + ty … + 3 of x
#             ty +------+4x4-+--+------+4x4-+--+           b[8]: words of rows tx … tx + 3, 64 + tx … + 3 of w
#                |      |    |  |      |    |  |           8 words of either: 64 dp4a
#            64  +------+----+--+------+----+--+
#                |      |    |  |      |    |  |
#        64 + ty +------+4x4-+--+------+4x4-+--+
#                |      |    |  |      |    |  |
#
# Why four pieces: the 16 threads of a row read ``b`` as 16 bytes each, one behind the other; eight lanes take
# all 32 banks once. Were a thread's eight words neighbours, the pieces of 16 bytes would be 32 bytes apart,
# and two lanes would meet in each bank.
#
# Shared memory: two halves, one multiplied while the other is filled.
#
#     here    x: word c of row r at (128 c + r)  |  w: likewise       8 columns of words, 4096 bytes each
#     other   the same for the next 32 columns of K


@inlined
def put_by_column(shared: Any, row: Any, part: Any, words: Any) -> None:
    """Put four words of a row into their four columns."""
    # Lanes have neighbouring rows, so each of these stores fills 32 neighbouring words: all banks, once.
    for i in range(4):
        ptx.put4(shared + ((part * 4 + uint32(i)) * SIDE + row) * 4, words[i])


@inlined
def eight(shared: Any, at: Any, into: Any) -> None:
    """Load eight words: four from ``at`` on and four half a tile further."""
    for four in range(2):
        words = ptx.take16(shared + (at + uint32(64 * four)) * 4)
        for i in range(4):
            into[4 * four + i] = words[i]


@inlined
def eight_scales(source: Any, into: Any) -> None:
    """Load eight floats from global memory: four, and four half a tile further."""
    for four in range(2):
        four_values = ptx.load_floats(source + uint64(256 * four))
        for i in range(4):
            into[4 * four + i] = four_values[i]


@family((run,) for run in (16, 32))
def kernel(run: int) -> Kernel:
    base, load16, store, dp4a = ptx.shared_base, ptx.load16, ptx.store_float, ptx.dp4a

    def registers(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows]
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / run, n_rows]
        y: Any,  # float32 [rows, columns]
        rows: Any, columns: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        # tid's row and part say what it copies, tx and ty what it multiplies: they have nothing in common.
        tid = uint32(cuda.threadIdx.x)
        tx, ty = (tid & 15) * 4, (tid >> 4) * 4
        m0, n0 = uint32(cuda.blockIdx.y) * SIDE, uint32(cuda.blockIdx.x) * SIDE
        row, part = tid & 127, tid >> 7
        x_at = address(x, m0 + row, k, part * 16, 1)
        w_at = address(w, n0 + row, k, part * 16, 1)
        here, other = base(), base() + 2 * HALF
        total = cuda.local.array(THREAD_OUTPUTS, float32)
        dot = cuda.local.array(THREAD_OUTPUTS, int32)
        a, b = cuda.local.array(THREAD_SIDE, int32), cuda.local.array(THREAD_SIDE, int32)
        da, db = cuda.local.array(THREAD_SIDE, float32), cuda.local.array(THREAD_SIDE, float32)
        for i in range(THREAD_OUTPUTS):
            total[i] = float32(0)
        # The first tile is put before the loop, and each other one while the tile before it is multiplied.
        put_by_column(here, row, part, load16(x_at))
        put_by_column(here + HALF, row, part, load16(w_at))
        cuda.syncthreads()  # all words of the first tile are there
        for step in range(uint32(k >> 5)):
            # Loads of the next tile start here and are needed below: the products hide the wait. The last
            # step loads its own tile again, which nobody reads, rather than behind the end.
            ahead = min(uint32(step) + 1, (k >> 5) - 1) * 32
            next_x, next_w = load16(x_at + ahead), load16(w_at + ahead)
            eight_scales(address(dx, step, m_rows, m0 + ty, 4), da)
            for r in range(32 // run):
                by_run = step * (32 // run) + uint64(r)
                eight_scales(address(dw, by_run, n_rows, n0 + tx, 4), db)
                for i in range(THREAD_OUTPUTS):
                    dot[i] = int32(0)
                for c in range(r * run // 4, (r + 1) * run // 4):
                    eight(here + uint32(SIDE * 4 * c), ty, a)
                    eight(here + uint32(HALF + SIDE * 4 * c), tx, b)
                    for i in range(THREAD_SIDE):
                        for j in range(THREAD_SIDE):
                            dot[THREAD_SIDE * i + j] = dp4a(a[i], b[j], dot[THREAD_SIDE * i + j])
                # Integers are exact, so a run is scaled once; the scales of a run are the same for 64 sums.
                for i in range(THREAD_SIDE):
                    for j in range(THREAD_SIDE):
                        total[THREAD_SIDE * i + j] += da[i] * (db[j] * float32(dot[THREAD_SIDE * i + j]))
            put_by_column(other, row, part, next_x)
            put_by_column(other + HALF, row, part, next_w)
            here, other = other, here
            # One barrier is enough, for both: the next tile is whole, and nobody reads this one any more.
            cuda.syncthreads()
        # Local arrays stay in registers since each index is known once the loops are unrolled.
        for i in range(THREAD_SIDE):
            m = m0 + ty + uint32(i % 4 + 64 * (i // 4))
            for j in range(THREAD_SIDE):
                n = n0 + tx + uint32(j % 4 + 64 * (j // 4))
                if m < rows and n < columns:
                    store(address(y, m, columns, n, 4), total[THREAD_SIDE * i + j])

    parameters = (uint64,) * 5 + (uint32,) * 5
    name = f"registers, runs of {run}"
    return Kernel(name, registers, *parameters, threads=THREADS, shared=4 * HALF)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run)
    m, n = out.shape
    sizes = (m, n, w.codes.shape[1], len(a.codes), len(w.codes))
    grid = (-(-n // SIDE), -(-m // SIDE))
    kernel(w.run)(grid, (THREADS,), a.codes, a.scale, w.codes, w.scale, out, *sizes)
    compensate(out, a, w)  # takes the offsets off, for formats that have them
