"""The kernels of cuda:persistent for 8-bit codes: one warpgroup of a block fills stages, two multiply them.

A block makes tile after tile. Two threads of its third warpgroup are the producers, which keep the ring
full (rings/boxed.py) across the end of a tile too, so that the next tile's stages arrive while outputs are
written. The other two warpgroups are the consumers (consumers.py), each for an equal part of the rows; they
take the registers that the third one releases.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..machine.launch import Kernel, family
from ..rings.boxed import BoxTile, barrier_initializer, producer, product_raster
from . import epilogue
from .consumers import float_consumer, integer_consumer
from .variant import RASTER_HEIGHT, Variant, float_variants, integer_variants

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # registers of a thread, which starts with 168


def block_opener(variant: Variant) -> Any:
    """The device function that starts a block: place the ring, make barriers, wait for the predecessor."""
    tile = variant.tile
    base, start = ptx.shared_base, barrier_initializer(tile.stages, 4 * tile.groups * tile.blocks)
    barriers_offset, wait = variant.layout.barriers, dependent_launch.wait_for_predecessor
    pair, sync_cluster = tile.pair, barriers.sync_cluster

    @inlined
    def open_block() -> Any:
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(barriers_offset))
        if uint32(cuda.threadIdx.x) == uint32(0):
            start(full)
        if pair:
            sync_cluster()
        else:
            cuda.syncthreads()
        wait()
        return ring, full

    return open_block


def specialized_block(
    variant: Variant, produce_w: Any, produce_x: Any, consume: Any, count_tiles: Any
) -> Any:
    """The device function that runs each warp as producer or consumer, with the registers that this needs.

    ``sources``: maps of the codes of x and w, of their scales, the number of steps, and of steps that share
    a scale of x. ``consume`` unpacks ``arguments``; ``count_tiles`` makes the schedule of a block out of
    ``m`` and ``n``.
    """
    fetching, open_block, first_lane = (
        4 * variant.tile.groups,
        block_opener(variant),
        barriers.from_first_lane,
    )
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)
    scarce, pair = variant.tile.groups > 1, variant.tile.pair
    sync_warp, sync_cluster = barriers.sync_warp, barriers.sync_cluster

    @inlined
    def run(sources: Any, arguments: Any, m: Any, n: Any) -> None:
        ring, full = open_block()
        x, w, x_scales, w_scales, steps, span = sources
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        tiles, number, stride = count_tiles(m, n), uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        if uint32(warp) >= uint32(fetching):
            if scarce:
                give()
            if thread == uint32(32 * fetching):
                produce_w(ring, full, w, w_scales, number, stride, tiles, steps, span)
            if thread == uint32(32 * fetching + 32):
                produce_x(ring, full, x, x_scales, number, stride, tiles, steps, span)
        else:
            if scarce:
                take()
            consume(ring, full, warp, arguments, number, stride, tiles)
        if pair:
            sync_warp()
            sync_cluster()  # the other block writes into this one's stages, and arrives at its barriers

    return run


def product_tile_counter(tile: BoxTile) -> Any:
    """The device function that counts the tiles of one product: down and across."""
    rows, columns = tile.rows, tile.columns

    @inlined
    def count_tiles(m: Any, n: Any) -> Any:
        down = uint32(uint32(m + uint32(rows - 1)) // uint32(rows))
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        return down, across

    return count_tiles


def _kernel(variant: Variant, product: Any, *parameters: Any) -> Kernel:
    return Kernel(
        f"tma persistent {variant}", product, *parameters, threads=variant.threads,
        shared=variant.layout.shared,
        least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


@family(float_variants())
def float_kernel(variant: Variant) -> Kernel:
    """The kernel for codes of floats, whose sums are promoted every 128 columns."""
    produce_w, produce_x = (producer(variant.layout, RASTER_HEIGHT, one) for one in (True, False))
    multiply = float_consumer(
        variant, epilogue.tile_writer(variant), product_raster(variant.tile, RASTER_HEIGHT)
    )

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, arguments: Any, number: Any, stride: Any, tiles: Any
    ) -> None:
        table, y, m, n, steps, pitch, out_args = arguments
        count = uint32(tiles[0] * tiles[1])
        multiply(
            ring, full, warp, table, pitch, y, number, stride, count, tiles, uint32(0), steps, m, n, out_args,
        )  # fmt: skip

    run = specialized_block(variant, produce_w, produce_x, consume, product_tile_counter(variant.tile))

    def product(
        x: Any, w: Any,  # maps of codes
        x_scales: Any,  # map of scales [K / (128 · span), M]
        column_scales_map: Any,  # map of scales of w [steps, N], where each column has its own
        table: Any,  # or else: float32 [steps, pitch / 4], one for each ``columns_per_scale`` columns
        y: Any,  # a map, or an address
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
        bias: Any, scales: Any, down: Any, along: Any,  # epilogue.py
    ) -> None:  # fmt: skip
        arguments = (table, y, m, n, steps, pitch, (bias, scales, down, along))
        run((x, w, x_scales, column_scales_map, steps, span), arguments, m, n)

    return _kernel(variant, product, *(uint64,) * 6, *(uint32,) * 5, *epilogue.PARAMETERS)


@family(integer_variants())
def integer_kernel(variant: Variant) -> Kernel:
    """The kernel for codes of integers whose scales do not vary along K."""
    produce_w, produce_x = (producer(variant.layout, RASTER_HEIGHT, one) for one in (True, False))
    multiply = integer_consumer(
        variant, epilogue.tile_writer(variant), product_raster(variant.tile, RASTER_HEIGHT)
    )

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, arguments: Any, number: Any, stride: Any, tiles: Any
    ) -> None:
        y, m, n, steps, terms, out_args = arguments
        count = uint32(tiles[0] * tiles[1])
        multiply(ring, full, warp, terms, y, number, stride, count, tiles, steps, m, n, out_args)

    run = specialized_block(variant, produce_w, produce_x, consume, product_tile_counter(variant.tile))

    def product(
        x: Any, w: Any,  # maps of codes
        y: Any,  # a map, or an address
        x_scales: Any, row_x: Any,  # scales of x, and bytes from one to the next
        w_scales: Any,  # float32 [N], filled up to whole tiles; the last two as well
        points_x: Any, others_x: Any, points_w: Any, others_w: Any,  # int32: rows.ZeroTerms
        m: Any, n: Any, steps: Any,
        rows_x: Any,  # rows of x that share a scale
        bias: Any, scales: Any, down: Any, along: Any,  # epilogue.py
    ) -> None:  # fmt: skip
        terms = (x_scales, row_x, rows_x, w_scales, points_x, others_x, points_w, others_w)
        sources = (x, w, uint64(0), uint64(0), steps, uint32(1))
        run(sources, (y, m, n, steps, terms, (bias, scales, down, along)), m, n)

    return _kernel(variant, product, *(uint64,) * 10, *(uint32,) * 4, *epilogue.PARAMETERS)
