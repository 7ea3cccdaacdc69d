"""Boxes: one thread asks the copy engine for a tile of each operand, and a barrier counts the bytes.

Before Hopper all threads of a block copy a tile: each computes addresses, holds them in registers, issues a
load for every 16 bytes. The copy engine (TMA) does all this by itself. The host makes a *map* of each
matrix: its address, its shape, the box that one copy moves, and the swizzle (chapter 1) in which its rows
shall lie in shared memory. A thread then names the map, a column and a row.

How do the others know that the box is there? By a *barrier* in shared memory, 8 bytes that count down both
arrivals of threads and bytes of copies:

    1. one thread arrives, and announces the bytes of both boxes (``expect``)
    2. it asks for the boxes (``fetch``); the engine reports each piece that it wrote to the barrier
    3. all threads wait for the end of the phase, whose parity is 0, 1, 0, 1 …

``wgmma`` reads both operands out of shared memory: 128 threads multiply 64 × 64 × 128 with four
instructions. A code never passes through a register.

Limited by waiting: copy, multiply, copy, multiply. While the engine copies, the tensor cores have nothing
to do, and the other way round. Chapter 3 removes this.
"""

from __future__ import annotations

from typing import Any

from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import LOW, Form, storer, unpromoted_products
from .operands import box_map, result_of

STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
ROWS, COLUMNS = 64, 64  # of a tile: rows of x, rows of w
W = ROWS * STEP  # where the tile of w begins in shared memory, behind that of x
STAGE = W + COLUMNS * STEP  # bytes of both, and where the barrier lies
SHARED = STAGE + 8 + 1024  # the tiles begin at a multiple of 1024, as swizzled boxes must


# Who does what, in a step:
#
#     thread 0        expect 16 KB, fetch x, fetch w |                       |          (then the next step)
#     copy engine                  | box of x | box of w |                   |
#     barrier ``full``  counts down             …  0: the phase ends         |
#     all 128 threads   wait                         | wgmma 64 × 64 × 128 | syncthreads
#
#     shared memory     | tile of x: 64 rows × 128 | tile of w: 64 rows × 128 | full |
#                       0                          W                          STAGE
#
# Warp i has rows 16 i … 16 i + 15 of the tile, in registers; the operands are read by all four together.


@family()
def kernel() -> Kernel:
    """The kernel: a block of 128 threads makes one tile."""
    form = Form(COLUMNS, "s8", "s8")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    store = storer(form)
    base, init, publish, expect, wait, fetch = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.wait,
        hopper.fetch,
    )  # fmt: skip

    def boxes_product(x: Any, w: Any, y: Any, n: Any, steps: Any) -> None:
        warp, lane = warp_and_lane()
        # Boxes begin at a multiple of 1024 bytes, as swizzled ones must: eight rows, after which the swizzle
        # begins anew. Dynamic shared memory is sure to begin at a multiple of 128 alone.
        shared = uint32(uint32(base() + 1023) & 0xFFFFFC00)
        full = uint32(shared + STAGE)
        first_thread = uint32(cuda.threadIdx.x) == 0
        if first_thread:
            init(full, uint32(1))  # one arrival: that of ``expect``
            publish()  # the copy engine must see the barrier, too, which is no thread of this block
        cuda.syncthreads()  # before that no other thread may wait at it
        row, column = uint32(cuda.blockIdx.y * uint32(ROWS)), uint32(cuda.blockIdx.x * uint32(COLUMNS))
        a = uint32(LOW | uint32(shared >> 4))  # how wgmma is told where an operand lies
        b = uint32(LOW | uint32(uint32(shared + W) >> 4))
        totals, step = zeros(), uint32(0)
        while step < steps:
            if first_thread:
                expect(full, uint32(STAGE))
                fetch(shared, x, uint32(step * STEP), row, full)
                fetch(uint32(shared + W), w, uint32(step * STEP), column, full)
            # All threads wait, not the first alone: each must know that the bytes are there before it names
            # them to wgmma. Phases take turns, so the parity of the step is that of the phase.
            wait(full, uint32(step & 1))
            totals = drain(advance(totals, a, b))
            # ``drain`` has waited for this thread's products; now all have read the tiles, and the first
            # thread may ask for the next ones. Without it the engine would write under the tensor cores.
            cuda.syncthreads()
            step = uint32(step + 1)
        g, t = g_and_t(lane)
        row = uint32(row + uint32(uint32(warp << 4) + g))
        column = uint32(column + uint32(t << 1))
        store(totals, y + (uint64(row) * n + column) * 4, uint64(n) * 4)

    return Kernel(
        "chapter boxes", boxes_product, *(uint64,) * 3, *(uint32,) * 2, threads=128, shared=SHARED,
        least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, w: Any) -> Any:
    """The sums of codes x [M, K] · w [N, K]ᵀ as int32 [M, N], exactly; M and N are multiples of 64."""
    y = result_of(x, w, ROWS, COLUMNS, "i4")
    (m, k), n = x.shape, len(w)
    kernel()((n // COLUMNS, m // ROWS), (128,), box_map(x, ROWS), box_map(w, COLUMNS), y, n, k // STEP)
    return y
