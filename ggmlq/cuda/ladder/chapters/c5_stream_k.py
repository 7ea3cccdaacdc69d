"""Stream-K: the steps of all tiles stand in one line, and each block takes an equal part of the line.

A block for each tile fills a card in waves. 140 tiles on 132 multiprocessors are two waves, of which the
second has 8 tiles: nearly half of the time 124 multiprocessors do nothing. Smaller tiles would even it out,
but read more bytes for each product. Here there are as many blocks as multiprocessors, and tiles stay
large. One *unit* is one step (128 columns of K) of one tile; units are numbered tile by tile, and block c
of ``count`` takes

    units  c · units // count  …  (c + 1) · units // count

that is the end of a tile, some whole tiles, and the beginning of another. All blocks end at the same time.

A tile that a block has whole is stored. Of a tile that several blocks share each has a sum of some columns;
these must be added. Whole numbers may be added in any order, so here the blocks add them in memory, where
zeros wait. Sums of floats would then depend on who comes first. The summit hands such parts over in a fixed
order, so that the bits are the same in each run.

Limited by waiting, as chapter 2, and by the parts: each shared tile is written more than once. With whole
waves a block for each tile is better, which is why the summit splits the tiles of the last wave alone.
"""

from __future__ import annotations

from typing import Any

from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import LOW, Form, adder, storer, unpromoted_products
from .operands import box_map, result_of

STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
ROWS, COLUMNS = 64, 64
W = ROWS * STEP
STAGE = W + COLUMNS * STEP
SHARED = STAGE + 8 + 1024


# Who computes what: three tiles of four steps, on five blocks. Block 3 has the end of one tile and the first
# unit of another.
#
#     tiles      |    tile 0     |    tile 1     |    tile 2     |
#     units      | 0   1   2   3 | 4   5   6   7 | 8   9  10  11 |
#     blocks     |   0   |   1   |     2     |   3   |     4     |
#
#     memory       0 + (block 0) + (block 1)       each adds what it has, in whichever order
#
# Within a unit all is as in chapter 2: two boxes, a barrier, wgmma.


def shares(units: int, count: int) -> list[range]:
    """The units of each of ``count`` blocks: all of them in order, in lengths that differ by one at most."""
    return [range(c * units // count, (c + 1) * units // count) for c in range(count)]


@family()
def kernel() -> Kernel:
    """The kernel: a block multiplies its share of the units; the result holds zeros before."""
    form = Form(COLUMNS, "s8", "s8")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    store, add = storer(form), adder(form)
    base, init, publish, expect, wait, fetch = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.wait,
        hopper.fetch,
    )  # fmt: skip

    def streaming_product(x: Any, w: Any, y: Any, n: Any, steps: Any, units: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        # Boxes begin at a multiple of 1024 bytes, as swizzled ones must: eight rows, after which the swizzle
        # begins anew. Dynamic shared memory is sure to begin at a multiple of 128 alone.
        shared = uint32(uint32(base() + 1023) & 0xFFFFFC00)
        full = uint32(shared + STAGE)
        first_thread = uint32(cuda.threadIdx.x) == 0
        if first_thread:
            init(full, uint32(1))
            publish()  # the copy engine must see the barrier, too, which is no thread of this block
        cuda.syncthreads()  # before that no other thread may wait at it
        a = uint32(LOW | uint32(shared >> 4))
        b = uint32(LOW | uint32(uint32(shared + W) >> 4))
        c, count = uint64(cuda.blockIdx.x), uint64(cuda.gridDim.x)
        # In 64 bits: c · units may be more than 32 hold.
        unit = uint32(c * units // count)
        end = uint32((c + 1) * units // count)
        across, parity = uint32(n // COLUMNS), uint32(0)
        while unit < end:
            tile = uint32(unit // steps)
            first = uint32(unit - uint32(tile * steps))
            last = min(steps, uint32(first + uint32(end - unit)))
            down = uint32(tile // across)
            row, column = uint32(down * ROWS), uint32(uint32(tile - down * across) * COLUMNS)
            totals, step = zeros(), first
            while step < last:
                if first_thread:
                    expect(full, uint32(STAGE))
                    fetch(shared, x, uint32(step * STEP), row, full)
                    fetch(uint32(shared + W), w, uint32(step * STEP), column, full)
                # The parity goes on from tile to tile: the barrier knows nothing of tiles.
                wait(full, parity)
                totals = drain(advance(totals, a, b))
                # All threads have read the tiles; the engine may write the next ones.
                cuda.syncthreads()
                step, parity = uint32(step + 1), uint32(parity ^ 1)
            row = uint32(row + uint32(uint32(warp << 4) + g))
            column = uint32(column + uint32(t << 1))
            place = y + (uint64(row) * n + column) * 4
            # A whole tile has no other part: its sums are stored, without an addition in memory.
            if uint32(last - first) == steps:
                store(totals, place, uint64(n) * 4)
            else:
                add(totals, place, uint64(n) * 4)
            unit = uint32(unit + uint32(last - first))

    return Kernel(
        "chapter stream_k", streaming_product, *(uint64,) * 3, *(uint32,) * 3, threads=128, shared=SHARED,
        least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, w: Any, blocks: int = 132) -> Any:
    """The sums of codes x [M, K] · w [N, K]ᵀ as int32 [M, N], exactly; M and N are multiples of 64.

    ``blocks``: as many as the card has multiprocessors; no more than units are launched.
    """
    y = result_of(x, w, ROWS, COLUMNS, "i4")
    y.fill(0)  # parts are added to what is there
    (m, k), n = x.shape, len(w)
    steps, tiles = k // STEP, m // ROWS * (n // COLUMNS)
    count = min(blocks, tiles * steps)
    kernel()((count,), (128,), box_map(x, ROWS), box_map(w, COLUMNS), y, n, steps, tiles * steps)
    return y
