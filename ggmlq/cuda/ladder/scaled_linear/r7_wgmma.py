"""Hopper's ``wgmma`` on FP8 codes: four warps multiply 64 × 128 × 128 out of shared memory.

Changed: ``wgmma`` takes both operands from shared memory, where the copy engine (TMA) lays them as it wants
them: one thread asks for two boxes of 128 codes a row and for their scales, and all wait at one barrier
that counts bytes. No thread computes an address, no code crosses a register, nothing is widened.

The tensor cores keep about 14 bits of a sum behind the leading one, so every 128 columns the sums are
promoted to float32, times both scales. At K = 4096 the error without that is some 3e-3 of the mean, with it
1e-4.

Why it helps: those tensor cores do four times what ``mma.sync`` on widened halves can.

Limited by waiting: copy, multiply and promote follow each other, one stage at a time.
"""

from __future__ import annotations

from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver.launch import Kernel, family
from ...intrinsics import hopper
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import float_products
from ...kernels.codes8 import operands as operands8
from ...kernels.codes8.epilogue import writer
from ...kernels.codes8.kernel import box_fetcher, raster_locator, ring_placer, thread_placer
from ...kernels.codes8.rows import refuses_boxes
from ...kernels.codes8.tiles import FLOAT_CODES, OUTPUTS, RASTER_HEIGHT, BoxTile, Variant
from ...kernels.hopper.frame import barrier_initializer

TILE = BoxTile(128, 128, 1)


def variants(tile: BoxTile) -> list[tuple[Variant]]:
    """A tile with every pair of codes and kind of outputs that tests look at."""
    all_variants = [Variant(tile, a, b) for a in FLOAT_CODES for b in FLOAT_CODES]
    all_variants += [
        Variant(tile, "e4m3", "e4m3", out, boxed, by)
        for out in OUTPUTS
        for boxed in (True, False)
        for by in (False, True)
    ]
    return [(variant,) for variant in dict.fromkeys(all_variants)]


@family(variants(TILE))
def kernel(variant: Variant) -> Kernel:
    """The kernel: a block makes one tile, and all its threads multiply."""
    tile, layout, threads = variant.tile, variant.layout, 128 * variant.tile.groups
    scales_offset, rows, columns_per_scale, boxed = (
        layout.scales, tile.rows, variant.columns_per_scale, variant.boxed,
    )  # fmt: skip
    start, locate = barrier_initializer(tile.stages, 1), raster_locator(tile, RASTER_HEIGHT)
    fetch_w, fetch_x = box_fetcher(layout, True), box_fetcher(layout, False)
    do = float_products(variant.form, variant.column_groups)
    zeros, nothing, begin, first, scales_of_w = do.zeros, do.nothing, do.start, do.first, do.scales_of_w
    thread_factors, promoted, place_thread, write = (
        do.factors[0], do.promote[0], thread_placer(variant), writer(variant),
    )  # fmt: skip
    start_dependent = hopper.take_turn
    place_ring, columns = ring_placer(layout.barriers), tile.columns

    def product(
        x: Any, w: Any, x_scales: Any, column_scales_map: Any, table: Any, y: Any,
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
    ) -> None:  # fmt: skip
        # x, w, column_scales_map: maps; x_scales: a map or 0; y: outputs or their map; table: scales of w by
        # step, ``pitch`` bytes each; span: steps that share a scale of x
        thread = uint32(cuda.threadIdx.x)
        warp = hopper.from_first_lane(uint32(thread >> 5))
        ring, full = place_ring()
        if thread == 0:
            start(full)
        cuda.syncthreads()  # before that no other thread may wait at the barrier
        start_dependent()  # the next kernel may start; this one waits for the one before, which may make x
        down = uint32(uint32(m + (rows - 1)) // rows)
        across = uint32(uint32(n + (columns - 1)) // columns)
        row, column = locate(uint32(cuda.blockIdx.x), down, across)
        place = place_thread(ring, warp)
        row_scales_at = uint32(
            ring + scales_offset + uint32(uint32(place.row + uint32(place.lane >> 2)) << 2)
        )
        columns_at = uint32(ring + (scales_offset + 4 * rows) + uint32(uint32(place.lane & 3) << 3))
        w_scales = table + uint64(uint32(column // columns_per_scale)) * 4
        totals, sums, step = zeros(), nothing(), uint32(0)
        while step < steps:
            if thread == 0:
                fetch_w(ring, full, uint32(0), w, column_scales_map, column, column, step, step)
                fetch_x(ring, full, uint32(0), x, x_scales, row, row, step, uint32(step // span))
            hopper.wait(full, uint32(step & 1))
            sums = begin(sums, row_scales_at)  # takes the scales of rows g and g + 8
            factors_now = thread_factors(sums, scales_of_w(w_scales))
            sums = first(sums, place.a, place.b)  # four wgmma, fresh sums, and the wait for them
            totals = promoted(totals, sums, factors_now, columns_at)
            w_scales += uint64(pitch)
            step = uint32(step + 1)
            cuda.syncthreads()  # nobody reads the stage any more
        write(totals, place, ring, y, column, row, m, n, 0)
        if boxed and place.lane == 0:
            hopper.wait_until_written()

    return Kernel(
        f"tma simple {variant}", product, *(uint64,) * 6, *(uint32,) * 5, threads=threads,
        shared=layout.shared,
        least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "multiplies floats of 8 bits"
    return refuses_boxes(problem)


def run(make: Any, tile: BoxTile, x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """A product of FP8 by the kernel ``make(variant)``, a block of threads a tile."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    (m, n), product, to = out.shape, operands8.CodesProduct.of(x, w), operands8.outputs(out)
    variant = Variant(tile, *product.kinds, to.out, to.boxed, product.column_scales)
    words, kernel = operands8.kernel_words(variant, product, to.at), make(variant)
    kernel((tile.tiles(m, n),), (kernel.threads,), *words.operands, *words.sizes)


@register(
    __name__, __doc__, arithmetic="codes", accumulate="float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    run(kernel, TILE, x, w, out)
