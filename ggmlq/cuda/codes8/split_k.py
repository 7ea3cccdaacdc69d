"""The kernel of cuda:split_k for FP8: the blocks of a cluster split K of a tile, then add up their sums.

Producers, ring and products are those of persistent.py; a block makes one part of the steps of one tile.
Then the blocks of the cluster exchange their sums: each finishes an equal part of the tile's rows.

    ring     while products run
    sums     [rows, columns], this block's, when its stages are free
    brought  [sources, rows / split, columns], behind them, when no block of the cluster multiplies any more

Sums are added in the order of the parts, so the result does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combined
from typing import Any

from ..epilogue.wgmma_sums import row_stager
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from ..rings.boxed import BoxTile, barrier_initializer, product_raster, raster, split_producer
from . import epilogue
from .consumers import float_consumer
from .persistent import CONSUMER_REGISTERS, PRODUCER_REGISTERS
from .variant import CODED_OUTPUTS, FLOAT_CODES, OUTPUTS, RASTER_HEIGHT, Variant

TILES = (BoxTile(128, 128, 6), BoxTile(128, 64, 8))
MOST = 8  # blocks that share K


def variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of floats; scales by column and outputs in codes for e4m3 alone."""
    combinations = combined(TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    every_variant = [Variant(tile, a, b, out, boxed=False) for tile, a, b, out in combinations]
    every_variant += [
        Variant(tile, "e4m3", "e4m3", out, False, True) for tile, out in combined(TILES, OUTPUTS)
    ]
    every_variant += [Variant(TILES[0], "e4m3", "e4m3", out, boxed=False) for out in CODED_OUTPUTS]
    return [(variant,) for variant in every_variant]


def row_split(tile: BoxTile, split: int) -> Sequence[int]:
    """The rows that a block finishes, and a factor: ``row * factor >> 16`` is the block of a row."""
    rows = -(-tile.rows // split)
    return rows, (1 << 16) // rows + 1


def exchanger(variant: Variant) -> Any:
    """The device function that sends sums to the block that finishes them, adds them and writes them."""
    tile, fours = variant.tile, variant.tile.columns // 4
    pitch, log = 4 * tile.columns + 32, fours.bit_length() - 1  # no two rows g share a bank
    rows, stride = tile.rows, 128 * tile.groups // fours  # rows that all threads copy in one round
    stage, meet = row_stager(tile.columns, tile.halves, pitch), barriers.named_barrier(1, 128 * tile.groups)
    arrive_at_cluster_relaxed, wait_for_cluster, sync_cluster = (
        barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.sync_cluster
    )  # fmt: skip
    put16_in_block, take16, take_floats = barriers.put16_in_block, ptx.take16, ptx.take_floats
    load_beside, write = epilogue.quad_epilogue(variant.out)
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def exchange(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, out_args: Any,
    ) -> None:  # fmt: skip
        lane, inner, _, _ = position
        rank, split, rows_per_block, inverse, result_args = out_args
        alone = split == uint32(1)  # there is no cluster to wait for
        meet()  # the stages of this block are free
        if not alone:
            arrive_at_cluster_relaxed()
        row_index = uint32(inner + uint32(lane >> uint32(2)))
        stage(
            totals, uint32(ring + row_index * uint32(pitch) + uint32(uint32(lane & uint32(3)) << uint32(3)))
        )
        meet()
        if not alone:
            wait_for_cluster()
        thread, received = uint32(cuda.threadIdx.x), uint32(ring + uint32(rows * pitch))
        r, at = uint32(thread >> uint32(log)), uint32(uint32(thread & uint32(fours - 1)) << uint32(4))
        while r < uint32(rows):
            owner = uint32(uint32(r * inverse) >> uint32(16))
            if owner != rank:
                v = take16(uint32(ring + r * uint32(pitch) + at))
                target = uint32(uint32(r - uint32(owner * rows_per_block)) + uint32(rank * rows_per_block))
                put16_in_block(uint32(received + target * uint32(pitch) + at), owner, v[0], v[1], v[2], v[3])
            r = uint32(r + uint32(stride))
        if not alone:
            sync_cluster()  # all sums have arrived
        wait_for_predecessor()  # the predecessor may still read the outputs
        first, r = uint32(rank * rows_per_block), uint32(thread >> uint32(log))
        last = min(rows_per_block, uint32(uint32(rows) - first))
        across = uint32(column + uint32(at >> uint32(2)))
        while r < last:
            e, f, g, h = float32(0), float32(0), float32(0), float32(0)
            below, source = uint32(row + first + r), uint32(0)
            bias_and_scales = load_beside(result_args, below, across, m, n)
            while source < split:
                locate = uint32(received + uint32(source * rows_per_block + r) * uint32(pitch))
                if source == rank:
                    locate = uint32(ring + uint32(first + r) * uint32(pitch))
                v, source = take_floats(uint32(locate + at)), uint32(source + uint32(1))
                e, f, g, h = e + v[0], f + v[1], g + v[2], h + v[3]
            if below < m:
                write(y, below, across, n, bias_and_scales, e, f, g, h)
            r = uint32(r + uint32(stride))

    return exchange


@family(variants())
def kernel(variant: Variant) -> Kernel:
    """The kernel: block (tile, part of K); the blocks of a tile are a cluster."""
    tile, fetching = variant.tile, 4 * variant.tile.groups
    produce_w, produce_x = split_producer(variant.layout, True), split_producer(variant.layout, False)
    consume, locate = (
        float_consumer(variant, exchanger(variant), product_raster(tile, RASTER_HEIGHT)),
        raster(tile, RASTER_HEIGHT),
    )
    start, barriers_offset, base = (
        barrier_initializer(tile.stages, fetching),
        variant.layout.barriers,
        ptx.shared_base,
    )
    first_lane, rank_here, sync_warp = barriers.from_first_lane, barriers.rank_in_cluster, barriers.sync_warp
    arrive_at_cluster_relaxed, wait_for_cluster, sync_cluster = (
        barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.sync_cluster
    )  # fmt: skip
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)
    let_successor_start, rows, columns = dependent_launch.let_successor_start, tile.rows, tile.columns

    def product(
        x: Any, w: Any, x_scales: Any, column_scales_map: Any, table: Any,  # as in persistent.float_kernel
        y: Any,
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
        split: Any, rows_per_block: Any, inverse: Any,  # blocks of a cluster; row_split
        bias: Any, scales: Any, down_scales: Any, along_scales: Any,  # epilogue.py
    ) -> None:  # fmt: skip
        let_successor_start()
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full, thread = uint32(ring + uint32(barriers_offset)), uint32(cuda.threadIdx.x)
        if thread == uint32(0):
            start(full)
        cuda.syncthreads()
        rank, number = rank_here(), uint32(uint32(cuda.blockIdx.x) // split)
        down = uint32(uint32(m + uint32(rows - 1)) // uint32(rows))
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        first = uint32(uint32(rank * steps) // split)
        last = uint32(uint32(uint32(rank + uint32(1)) * steps) // split)
        warp = first_lane(uint32(thread >> uint32(5)))
        if uint32(warp) >= uint32(fetching):
            give()
            row, column = locate(number, down, across)
            if thread == uint32(32 * fetching):
                produce_w(ring, full, w, column_scales_map, column, first, last, span)
            if thread == uint32(32 * fetching + 32):
                produce_x(ring, full, x, x_scales, row, first, last, span)
            sync_warp()
            if split != uint32(1):
                arrive_at_cluster_relaxed()
                wait_for_cluster()
                sync_cluster()
        else:
            take()
            result_args = (bias, scales, down_scales, along_scales)
            out_args = (rank, split, rows_per_block, inverse, result_args)
            stride = uint32(down * across)  # each block has one tile
            tiles = (down, across)
            consume(
                ring, full, warp, table, pitch, y, number, stride, stride, tiles, first, last, m, n, out_args,
            )  # fmt: skip

    return Kernel(
        f"tma divided {variant}", product, *(uint64,) * 6, *(uint32,) * 8, *epilogue.PARAMETERS,
        threads=variant.threads, shared=variant.layout.shared, least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip
