"""A ring of stages that two warps keep full, so that no copy is waited for.

Changed: several stages, each with a barrier that tells it is full and one that tells it is empty. Two
producer warps, one for each operand, only ask for boxes as stages become empty; eight consumer warps multiply
full stages. No barrier of the whole block is left: a warpgroup waits for a stage, multiplies, arrives at the
empty barrier, and promotes its sums while the tensor cores work on the other warpgroup's products.

Why it helps: copies take the time of several steps to arrive, and six are in flight.

Limited by the L2 and shared memory: a tile of 128 × 128 reads a byte for 128 products; a larger one needs
more registers than 320 threads can have. And by the gap between tiles: a start, an empty ring, stores.
"""

from __future__ import annotations

from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...intrinsics import hopper
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import float_products
from ...kernels.codes8.epilogue import writer
from ...kernels.codes8.kernel import TileWork, dense_producers, late_opener, raster_locator, thread_placer
from ...kernels.codes8.tiles import RASTER_HEIGHT, BoxTile, Variant
from ...kernels.hopper.frame import stage_advancer
from .r7_wgmma import refuses, run, variants

TILE = BoxTile(128, 128, 6)


@family(variants(TILE))
def kernel(variant: Variant) -> Kernel:
    """The kernel: a block makes one tile; its last two warps fetch."""
    tile, layout, fetching = variant.tile, variant.layout, 4 * variant.tile.groups
    stages, scale_bytes, scales_offset, length = (
        tile.stages,
        layout.scale_bytes,
        layout.scales,
        tile.stage // 16,
    )
    rows, columns, columns_per_scale, boxed = (
        tile.rows,
        tile.columns,
        variant.columns_per_scale,
        variant.boxed,
    )
    open_block, after = late_opener(variant), stage_advancer(stages)
    locate = raster_locator(tile, RASTER_HEIGHT)
    produce_w, produce_x = dense_producers(variant)
    do = float_products(variant.form, variant.column_groups)
    zeros, nothing, begin, first, scales_of_w = do.zeros, do.nothing, do.start, do.first, do.scales_of_w
    thread_factors, promoted, place_thread, write = (
        do.factors[0], do.promote[0], thread_placer(variant), writer(variant),
    )  # fmt: skip

    def product(
        x: Any, w: Any, x_scales: Any, column_scales_map: Any, table: Any, y: Any,
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
    ) -> None:  # fmt: skip
        ring, full, _ = open_block(x, m)
        thread, number = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        warp = hopper.from_first_lane(uint32(thread >> 5))
        down = uint32(uint32(m + (rows - 1)) // rows)
        across = uint32(uint32(n + (columns - 1)) // columns)
        if warp >= fetching:
            stride = uint32(down * across)  # each block has one tile
            work = TileWork(number, stride, (down, across), uint32(0), steps)
            if thread == 32 * fetching:
                produce_w(ring, full, w, column_scales_map, work, span)
            if thread == 32 * fetching + 32:
                produce_x(ring, full, x, x_scales, work, span)
        else:
            row, column = locate(number, down, across)
            place = place_thread(ring, warp)
            scales_at = uint32(ring + scales_offset)
            row_scales_at = uint32(scales_at + uint32(uint32(place.row + uint32(place.lane >> 2)) << 2))
            columns_at = uint32(scales_at + 4 * rows + uint32(uint32(place.lane & 3) << 3))
            w_scales = table + uint64(uint32(column // columns_per_scale)) * 4
            totals, sums, step, stage, phase = zeros(), nothing(), uint32(0), uint32(0), uint32(0)
            while step < steps:
                barrier, scales_offset_now = (uint32(full + stage * 8), uint32(stage * scale_bytes))
                hopper.wait(barrier, phase)
                sums = begin(sums, uint32(row_scales_at + scales_offset_now))
                factors_now = thread_factors(sums, scales_of_w(w_scales))
                sums = first(sums, uint32(place.a + stage * length), uint32(place.b + stage * length))
                totals = promoted(totals, sums, factors_now, uint32(columns_at + scales_offset_now))
                if place.lane == 0:
                    hopper.arrive(uint32(barrier + 8 * stages))
                stage, phase = after(stage, phase)
                w_scales += uint64(pitch)
                step = uint32(step + 1)
            write(totals, place, ring, y, column, row, m, n, 0)
            if boxed and place.lane == 0:
                hopper.wait_until_written()

    return Kernel(
        f"tma ring {variant}", product, *(uint64,) * 6, *(uint32,) * 5, threads=32 * fetching + 64,
        shared=layout.shared, least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


@register(
    __name__, __doc__, arithmetic="codes", accumulate="float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    run(kernel, TILE, x, w, out)
