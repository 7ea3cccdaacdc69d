"""Warp specialisation: one warp only fetches, four only multiply, and a ring of stages lies between them.

The kernel of chapter 2 copies, waits, multiplies, and copies again. Here shared memory holds several
*stages*, each with room for a tile of x and one of w, and two barriers:

    full[s]    the copy engine has filled stage s       the producer announces bytes, consumers wait
    empty[s]   nobody reads stage s any more            each consumer warp arrives, the producer waits

The producer warp runs ahead until the ring is full; the consumers follow, and find the next stage filled
while they multiply this one. No barrier of the whole block is in the loop. Why a warp of its own, and not
one thread of a consumer? Because the producer waits for ``empty`` while the consumers wait for products:
two waits that must not stand in one line of program.

*Phases.* A barrier's phases count 0, 1, 2 …; a thread waits for the end of a phase by its parity alone.
Every round of the ring is one phase of each barrier. The producer's first round must not wait: it waits for
the parity before the first, 1, which a fresh barrier counts as ended.

On a card the summit adds one thing: ``setmaxnreg`` takes registers from the producer's warps and gives them
to the consumers, so that tiles may be larger. A producer of one warp, as here, has nothing to give.

Limited by the copies: every block fetches its own tiles, though its neighbours fetch the same (chapter 4),
and by tiles that do not fill the card (chapter 5).
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
ROWS, COLUMNS, STAGES = 64, 64, 4
W = ROWS * STEP  # where the tile of w begins in a stage, behind that of x
STAGE = W + COLUMNS * STEP
FULL = STAGES * STAGE  # where the barriers lie, first all full ones, then all empty ones
SHARED = FULL + 16 * STAGES + 1024
CONSUMERS = 4  # warps: one warpgroup


# Who does what, and when:
#
#     producer warp    | fill 0 | fill 1 | fill 2 | fill 3 | wait empty[0] | fill 0 | …     up to 4 ahead
#     consumer warps            | mul 0  | mul 1  | mul 2  | mul 3  | mul 0 | …
#
#     ring             | stage 0: x, w | stage 1: x, w | stage 2 | stage 3 | full[0 … 3] | empty[0 … 3] |
#
# A stage goes round:  empty  →  producer announces bytes  →  engine has written them (full)  →  consumers
# have multiplied, four warps arrive  →  empty


@family()
def kernel() -> Kernel:
    """The kernel: 128 threads that multiply, then a warp that fetches, make one tile."""
    form = Form(COLUMNS, "s8", "s8")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    store = storer(form)
    base, init, publish, expect, arrive, wait, fetch, from_first_lane = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.arrive,
        hopper.wait, hopper.fetch, hopper.from_first_lane,
    )  # fmt: skip

    def specialized_product(x: Any, w: Any, y: Any, n: Any, steps: Any) -> None:
        warp, lane = warp_and_lane()
        warp = from_first_lane(warp)  # all lanes take the same branch, and the assembler knows
        # Stages begin at a multiple of 1024 bytes, as swizzled boxes must.
        ring = uint32(uint32(base() + 1023) & 0xFFFFFC00)
        full = uint32(ring + FULL)
        empty = uint32(full + 8 * STAGES)
        if uint32(cuda.threadIdx.x) == 0:
            for s in range(STAGES):
                init(uint32(full + uint32(8 * s)), uint32(1))
                init(uint32(empty + uint32(8 * s)), uint32(CONSUMERS))
            publish()  # the copy engine must see the barriers, too
        cuda.syncthreads()  # the last barrier of the whole block: from here on warps go their own ways
        row, column = uint32(cuda.blockIdx.y * uint32(ROWS)), uint32(cuda.blockIdx.x * uint32(COLUMNS))
        step, stage, parity = uint32(0), uint32(0), uint32(0)
        if warp == CONSUMERS:  # the producer
            while step < steps:
                # One lane does it all; the others only count with it.
                if lane == 0:
                    here = uint32(ring + stage * STAGE)
                    filled = uint32(full + stage * 8)
                    # Without this wait the engine would write over a stage that is still multiplied.
                    wait(uint32(empty + stage * 8), uint32(parity ^ 1))
                    expect(filled, uint32(STAGE))
                    fetch(here, x, uint32(step * STEP), row, filled)
                    fetch(uint32(here + W), w, uint32(step * STEP), column, filled)
                step, stage = uint32(step + 1), uint32(stage + 1)
                if stage == STAGES:
                    stage, parity = uint32(0), uint32(parity ^ 1)
        else:
            totals = zeros()
            while step < steps:
                here = uint32(ring + stage * STAGE)
                a = uint32(LOW | uint32(here >> 4))
                b = uint32(LOW | uint32(uint32(here + W) >> 4))
                wait(uint32(full + stage * 8), parity)
                # Without ``drain`` a warp would give the stage back while wgmma, which runs on by itself,
                # still reads it.
                totals = drain(advance(totals, a, b))
                if lane == 0:  # one arrival a warp: four, as ``empty`` was told
                    arrive(uint32(empty + stage * 8))
                step, stage = uint32(step + 1), uint32(stage + 1)
                if stage == STAGES:
                    stage, parity = uint32(0), uint32(parity ^ 1)
            g, t = g_and_t(lane)
            row = uint32(row + uint32(uint32(warp << 4) + g))
            column = uint32(column + uint32(t << 1))
            place = y + (uint64(row) * n + column) * 4
            store(totals, place, uint64(n) * 4)

    return Kernel(
        "chapter warp_specialized", specialized_product, *(uint64,) * 3, *(uint32,) * 2,
        threads=32 * CONSUMERS + 32, shared=SHARED, least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, w: Any) -> Any:
    """The sums of codes x [M, K] · w [N, K]ᵀ as int32 [M, N], exactly; M and N are multiples of 64."""
    y = result_of(x, w, ROWS, COLUMNS, "i4")
    (m, k), n = x.shape, len(w)
    grid, threads = (n // COLUMNS, m // ROWS), 32 * CONSUMERS + 32
    kernel()(grid, (threads,), box_map(x, ROWS), box_map(w, COLUMNS), y, n, k // STEP)
    return y
