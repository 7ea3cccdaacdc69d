"""Epilogue: from sums in registers to wide stores, with scales, a bias, an activation and one rounding.

After the last step each thread has 32 sums, scattered as the tensor cores leave them: two neighbours here,
two eight rows below. Stored as they are, a warp's instruction writes 8 pieces of 32 bytes into 8 rows. And
what follows a product (scales, a bias, an activation, a rounding to 16 bits) would be a kernel that reads
and writes all results once more.

Here both are done before anything reaches memory:

    1. sums go into shared memory, as rows: the memory of the stages, which nobody needs any more
    2. each thread takes 8 neighbours of a row, two loads of 16 bytes
    3. y = relu(sum · x_scale[m] · w_scale[n] + bias[n]), in float32, rounded once, to bfloat16
    4. 8 results are one store of 16 bytes; 8 threads write a whole line of 128 bytes

Rows in shared memory are 8 numbers longer than they need be. With 64 numbers a row the rows g = 0 … 7 of a
warp's first step would begin in the same bank; 72 move each on by 8 banks, so that no two lanes meet.

Limited by being behind the products: the tensor cores wait for it. The summit's blocks stay and make
several tiles, so that one warpgroup's epilogue runs while the other multiplies.
"""

from __future__ import annotations

from typing import Any

from ....errors import ShapeError
from ...driver.launch import Kernel, array, family
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...intrinsics.wgmma import LOW, Form, putter, unpromoted_products
from .operands import box_map, result_of

STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
ROWS, COLUMNS = 64, 64
W = ROWS * STEP
STAGE = W + COLUMNS * STEP
PITCH = 4 * (COLUMNS + 8)  # bytes of a row of sums
BARRIER = max(STAGE, ROWS * PITCH)
SHARED = BARRIER + 8 + 1024
THREADS, EACH = 128, 8  # results that a thread makes of a row


# Who has what, before and after the way through shared memory:
#
#     registers, as wgmma leaves them         rows of 64 + 8 numbers        as they are stored
#     warp i: rows 16 i … 16 i + 15                                         thread: 8 neighbours
#
#     lane 4 g + t:  row g      2t, 2t+1      | row 0  . . … . | pad |      00000000 11111111 … 77777777
#                    row g + 8  2t, 2t+1  →   | row 1  . . … . | pad |  →   88888888 99999999 …
#                    of every 8 columns       | …              |     |      128 bytes a row: one line
#
# Shared memory is the stages' own: the sums of a tile, 64 × 72 × 4 bytes, are more than both operands of a
# step, so the barrier lies behind whichever is longer.


@inlined
def finished(total: Any, x_scale: Any, w_scale: Any, bias: Any) -> Any:
    """The bits of one result: rounded to bfloat16."""
    value = ptx.fma(float32(total), x_scale * w_scale, bias)
    return ptx.bfloat_bits(ptx.larger(value, float32(0)))


@family()
def kernel() -> Kernel:
    """The kernel: a block of 128 threads makes one tile of bfloat16."""
    form = Form(COLUMNS, "s8", "s8")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    put, take16, store16, low_halves = putter(form), ptx.take16, ptx.store16, ptx.low_halves
    base, init, publish, expect, wait, fetch = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.wait,
        hopper.fetch,
    )  # fmt: skip

    def finishing_product(
        x: Any, w: Any, y: Any,
        x_scales: Any, w_scales: Any, bias: Any,  # float32 [M], [N], [N]
        n: Any, steps: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        thread = uint32(cuda.threadIdx.x)
        # Boxes begin at a multiple of 1024 bytes, as swizzled ones must: eight rows, after which the swizzle
        # begins anew. Dynamic shared memory is sure to begin at a multiple of 128 alone.
        shared = uint32(uint32(base() + 1023) & 0xFFFFFC00)
        full = uint32(shared + BARRIER)
        if thread == 0:
            init(full, uint32(1))
            publish()  # the copy engine must see the barrier, too, which is no thread of this block
        cuda.syncthreads()  # before that no other thread may wait at it
        row, column = uint32(cuda.blockIdx.y * uint32(ROWS)), uint32(cuda.blockIdx.x * uint32(COLUMNS))
        a = uint32(LOW | uint32(shared >> 4))
        b = uint32(LOW | uint32(uint32(shared + W) >> 4))
        totals, step = zeros(), uint32(0)
        while step < steps:
            if thread == 0:
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
        place_in_tile = uint32(uint32(uint32(warp << 4) + g) * PITCH + uint32(t << 3))
        # No box is in flight and no thread reads a tile any more (the loop's last barrier): their memory is
        # free.
        put(totals, uint32(shared + place_in_tile), uint32(PITCH))
        cuda.syncthreads()  # each thread takes numbers that others put
        inner = uint32(uint32(thread % (COLUMNS // EACH)) * EACH)
        first = uint32(column + inner)
        for i in range(ROWS * COLUMNS // (THREADS * EACH)):
            r = uint32(thread // (COLUMNS // EACH)) + uint32(i * THREADS * EACH // COLUMNS)
            at = uint32(shared + r * PITCH + inner * 4)
            one, two = take16(at), take16(uint32(at + 16))
            scale = x_scales[row + r]
            place = y + (uint64(row + r) * n + first) * 2
            store16(
                place,
                low_halves(
                    finished(one[0], scale, w_scales[first], bias[first]),
                    finished(one[1], scale, w_scales[first + 1], bias[first + 1]),
                ),
                low_halves(
                    finished(one[2], scale, w_scales[first + 2], bias[first + 2]),
                    finished(one[3], scale, w_scales[first + 3], bias[first + 3]),
                ),
                low_halves(
                    finished(two[0], scale, w_scales[first + 4], bias[first + 4]),
                    finished(two[1], scale, w_scales[first + 5], bias[first + 5]),
                ),
                low_halves(
                    finished(two[2], scale, w_scales[first + 6], bias[first + 6]),
                    finished(two[3], scale, w_scales[first + 7], bias[first + 7]),
                ),
            )

    return Kernel(
        "chapter epilogue", finishing_product, *(uint64,) * 3, *(array(float32, 1),) * 3, *(uint32,) * 2,
        threads=THREADS, shared=SHARED, least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, x_scales: Any, w: Any, w_scales: Any, bias: Any) -> Any:
    """The values relu(x · wᵀ · x_scales[:, None] · w_scales + bias) of codes x [M, K] and w [N, K].

    The result is uint16 [M, N], the bits of bfloat16; M and N are multiples of 64.
    """
    y = result_of(x, w, ROWS, COLUMNS, "u2")
    (m, k), n = x.shape, len(w)
    if (x_scales.shape, w_scales.shape, bias.shape) != ((m,), (n,), (n,)):
        raise ShapeError(
            f"x_scales {x_scales.shape}, w_scales {w_scales.shape}, bias {bias.shape} of x {x.shape} and w "
            f"{w.shape}: a scale is for a row of x or w, a bias for a row of w; pass ({m},), ({n},), ({n},)"
        )
    grid = (n // COLUMNS, m // ROWS)
    kernel()(
        grid, (THREADS,), box_map(x, ROWS), box_map(w, COLUMNS), y, x_scales, w_scales, bias, n, k // STEP
    )
    return y
