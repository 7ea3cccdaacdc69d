"""FP8 with scales: every 128 columns sums leave the tensor cores, times two scales, for float32.

A code of 8 bits has few values, so a matrix of codes has scales: here one for 128 columns of a row of x,
and one for 128 columns × 64 rows of w (a whole tile, which keeps this short). A product is then

    y[m, n] = Σ over groups j  x_scale[m, j] · w_scale[n / 64, j] · Σ over k in j  x[m, k] · w[n, k]

The inner sum is what tensor cores do. The outer one cannot be left to them, for two reasons. The scales
differ from group to group. And the tensor cores keep some 14 bits of a sum of FP8 products, so that long
sums lose what float32 would keep: even with all scales 1 sums would have to be **promoted** every so often.

So each step begins with sums of zero, and ends with one multiply-add a sum, ``totals + sums · factor``. A
thread has sums of two rows, so it needs two factors a step. That work is done by the ordinary units: 32
multiply-adds a thread here for 4 ``wgmma``. The summit hides it, because one warpgroup promotes while the
tensor cores multiply for the other.

Limited by waiting, as chapter 2: products, then promotion, then the next copy.
"""

from __future__ import annotations

from typing import Any

from ....errors import ShapeError
from ...driver.launch import Kernel, array, family
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...intrinsics.wgmma import LOW, Form, scaled_adder, storer, unpromoted_products
from .operands import box_map, result_of

STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
ROWS, COLUMNS = 64, 64
W = ROWS * STEP
STAGE = W + COLUMNS * STEP
SHARED = STAGE + 8 + 1024


# Who computes what: as in chapter 2 a block makes 64 × 64 outputs, warp i rows 16 i … 16 i + 15. New is what
# follows each step:
#
#     tensor cores     sums = 0 + 128 columns        sums = 0 + the next 128
#     other units                        totals += sums · factor         totals += sums · factor …
#
#                      columns of the tile: one factor of w for all
#     row g            s s s s … s        x_scale[low, step]  · w_scale     the two factors of a thread,
#     row g + 8        s s s s … s        x_scale[high, step] · w_scale     which has 32 sums of two rows


@family()
def kernel() -> Kernel:
    """The kernel: a block of 128 threads makes one tile of floats."""
    form = Form(COLUMNS, "e4m3", "e4m3")
    products = unpromoted_products(form)
    zeros, advance, drain = products.zeros, products.advance, products.drain
    store, promoted = storer(form), scaled_adder(form)
    base, init, publish, expect, wait, fetch = (
        ptx.shared_base, hopper.init_barrier, hopper.publish_barriers, hopper.expect, hopper.wait,
        hopper.fetch,
    )  # fmt: skip

    def scaled_product(
        x: Any, w: Any, y: Any,
        x_scales: Any,  # float32 [M, steps]
        w_scales: Any,  # float32 [N / 64, steps]
        n: Any, steps: Any,
    ) -> None:  # fmt: skip
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
        row, column = uint32(cuda.blockIdx.y * uint32(ROWS)), uint32(cuda.blockIdx.x * uint32(COLUMNS))
        low = uint32(row + uint32(uint32(warp << 4) + g))  # this thread's rows
        high = uint32(low + 8)
        a = uint32(LOW | uint32(shared >> 4))
        b = uint32(LOW | uint32(uint32(shared + W) >> 4))
        totals, step = zeros(), uint32(0)
        while step < steps:
            if first_thread:
                expect(full, uint32(STAGE))
                fetch(shared, x, uint32(step * STEP), row, full)
                fetch(uint32(shared + W), w, uint32(step * STEP), column, full)
            of_w = w_scales[cuda.blockIdx.x, step]  # loads that need not wait for the boxes
            low_factor, high_factor = x_scales[low, step] * of_w, x_scales[high, step] * of_w
            # All threads wait, not the first alone: each must know that the bytes are there before it names
            # them to wgmma. Phases take turns, so the parity of the step is that of the phase.
            wait(full, uint32(step & 1))
            # From zero each time: these are the sums of one group of scales alone.
            sums = drain(advance(zeros(), a, b))
            totals = promoted(totals, sums, low_factor, high_factor)
            # ``drain`` has waited for this thread's products; now all have read the tiles, and the first
            # thread may ask for the next ones. Without it the engine would write under the tensor cores.
            cuda.syncthreads()
            step = uint32(step + 1)
        column = uint32(column + uint32(t << 1))
        store(totals, y + (uint64(low) * n + column) * 4, uint64(n) * 4)

    return Kernel(
        "chapter scaled_codes", scaled_product, *(uint64,) * 3, array(float32, 2), array(float32, 2),
        *(uint32,) * 2, threads=128, shared=SHARED, least=(9, 0), exact=True, lto=True,
    )  # fmt: skip


def product(x: Any, x_scales: Any, w: Any, w_scales: Any) -> Any:
    """The product x · wᵀ of E4M3 codes as uint8 [M, K] and [N, K], with float32 scales; float32 [M, N].

    ``x_scales`` are [M, K / 128], ``w_scales`` [N / 64, K / 128]; M and N are multiples of 64.
    """
    y = result_of(x, w, ROWS, COLUMNS, "f4")
    (m, k), n = x.shape, len(w)
    steps = k // STEP
    expected = (m, steps), (n // COLUMNS, steps)
    if (x_scales.shape, w_scales.shape) != expected:
        raise ShapeError(
            f"scales {x_scales.shape} of x {x.shape} and {w_scales.shape} of w {w.shape}: a scale is for "
            f"{STEP} columns of a row of x, or of {COLUMNS} rows of w; pass {expected[0]} and {expected[1]}"
        )
    grid = (n // COLUMNS, m // ROWS)
    kernel()(grid, (128,), box_map(x, ROWS), box_map(w, COLUMNS), y, x_scales, w_scales, n, steps)
    return y
