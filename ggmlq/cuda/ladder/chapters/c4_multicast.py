"""Clusters with multicast: two blocks need the same weights, so each fetches half of them for both.

Tiles in one column of the result multiply different rows of x by the *same* rows of w. Each block of
chapter 2 fetches its own copy of w from the second cache. A **cluster** is a few blocks that surely run at
one time on neighbouring multiprocessors, and may write into each other's shared memory. The copy engine can
write one box to the same place in several blocks of a cluster, and reports the bytes to the barrier at the
same place of each. So:

    block 0 fetches its 64 rows of x, and rows  0 … 31 of w for blocks 0 and 1
    block 1 fetches its 64 rows of x, and rows 32 … 63 of w for blocks 0 and 1

Each block's barrier expects all bytes that will lie in its memory, whoever asked for them. A block reads 64
+ 32 rows in place of 64 + 64: a quarter less traffic. In a cluster of four along one operand, or of two
with wider tiles of w, it is more.

*Two new hazards.* A block's barrier must exist before a neighbour's box reports to it, and a neighbour must
have read a stage before it is overwritten: what a barrier of the block did in chapter 2 is now one of the
cluster. (The summit has barriers of stages at which warps of *both* blocks arrive.)

Limited by waiting, as chapter 2: this one shows the traffic alone.
"""

from __future__ import annotations

from typing import Any

from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import LOW, Form, storer, unpromoted_products
from .operands import box_map, result_of

BLOCKS = 2  # of a cluster
STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
ROWS, COLUMNS = 64, 64  # of a block's tile; tiles of a cluster lie below each other
PART = COLUMNS // BLOCKS  # rows of w that a block fetches
W = ROWS * STEP
STAGE = W + COLUMNS * STEP
SHARED = STAGE + 8 + 1024


# Who fetches what, in a step of a cluster of two blocks:
#
#                   block 0                          block 1
#     x             rows 0 … 63, for itself          rows 64 … 127, for itself
#     w, upper half   ------------ block 0 fetches rows 0 … 31, for both --------->
#     w, lower half   <----------- block 1 fetches rows 32 … 63, for both ---------
#     ``full``      expects x + both halves          expects x + both halves
#
# A box that is sent to both lies at the same offset of shared memory in each, and reports to the barrier at
# the same offset of each.


@family()
def kernel() -> Kernel:
    """The kernel: blocks 2 i and 2 i + 1 of a row of the grid are a cluster."""
    form = Form(COLUMNS, "s8", "s8")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    store = storer(form)
    base, init, publish, expect, wait = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.wait,
    )  # fmt: skip
    fetch, fetch_for_all, rank_in_cluster, sync_cluster = (
        hopper.fetch, hopper.fetch_for_all, hopper.rank_in_cluster, hopper.sync_cluster,
    )  # fmt: skip

    def multicast_product(x: Any, w: Any, y: Any, n: Any, steps: Any) -> None:
        warp, lane = warp_and_lane()
        rank = rank_in_cluster()
        # Boxes begin at a multiple of 1024 bytes, as swizzled ones must: eight rows, after which the swizzle
        # begins anew. Dynamic shared memory is sure to begin at a multiple of 128 alone.
        shared = uint32(uint32(base() + 1023) & 0xFFFFFC00)
        full = uint32(shared + STAGE)
        first_thread = uint32(cuda.threadIdx.x) == 0
        if first_thread:
            init(full, uint32(1))
            publish()
        # Both blocks have their barriers: a neighbour's box must find one to report to.
        sync_cluster()
        row, column = uint32(cuda.blockIdx.x * uint32(ROWS)), uint32(cuda.blockIdx.y * uint32(COLUMNS))
        part = uint32(rank * PART)
        a = uint32(LOW | uint32(shared >> 4))
        b = uint32(LOW | uint32(uint32(shared + W) >> 4))
        # The place of this block's half, here as in the neighbour.
        here = uint32(uint32(shared + W) + part * STEP)
        totals, step = zeros(), uint32(0)
        while step < steps:
            if first_thread:
                expect(full, uint32(STAGE))  # all of x, and both halves of w
                fetch(shared, x, uint32(step * STEP), row, full)
                fetch_for_all(
                    here, w, uint32(step * STEP), uint32(column + part), full,
                    uint32((1 << BLOCKS) - 1),
                )  # fmt: skip
            # The bytes of both halves, whoever asked for them: the neighbour's half may come first or last.
            wait(full, uint32(step & 1))
            totals = drain(advance(totals, a, b))
            # Neither block reads its tiles any more. A barrier of the block would not do: the next half is
            # written into the neighbour's memory, too, which may be a step behind.
            sync_cluster()
            step = uint32(step + 1)
        g, t = g_and_t(lane)
        row = uint32(row + uint32(uint32(warp << 4) + g))
        column = uint32(column + uint32(t << 1))
        store(totals, y + (uint64(row) * n + column) * 4, uint64(n) * 4)

    return Kernel(
        "chapter multicast", multicast_product, *(uint64,) * 3, *(uint32,) * 2, threads=128, shared=SHARED,
        least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, w: Any) -> Any:
    """The sums of codes x [M, K] · w [N, K]ᵀ as int32 [M, N], exactly; M is a multiple of 128, N of 64."""
    y = result_of(x, w, BLOCKS * ROWS, COLUMNS, "i4")
    (m, k), n = x.shape, len(w)
    grid = (m // ROWS, n // COLUMNS)
    kernel()(grid, (128,), box_map(x, ROWS), box_map(w, PART), y, n, k // STEP, cluster=BLOCKS)
    return y
