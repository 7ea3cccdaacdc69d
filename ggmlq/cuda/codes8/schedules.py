"""Schedules of the kernel for 8-bit codes: which tiles a block makes, which of their steps, where they lie.

    dense      blocks stay on the card and take tile after tile of one product
    split_k    a block makes one part of the steps of one tile; the blocks of a tile are a cluster
    experts    blocks stay and take the tiles of all experts from a plan (schedule/groups.py)

The rows of an expert's tile are a slot of its uses, the columns a part of its weights; its tiles are taken in
the order of one product. Rows of x lie in the plan's order (operands.py), or in place where the uses
are in order. A box of weights that reaches over an expert's end brings rows of the next expert, for outputs
that nobody writes. In the table of scales each expert begins at a multiple of 128 columns, for boxes of
scales must begin at a multiple of 16 bytes, wherever the expert's rows do.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import codes, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..rings.boxed import (
    BoxTile,
    SharedLayout,
    barrier_initializer,
    raster,
    ring_placer,
    step_producer,
)  # fmt: skip
from ..schedule.groups import HEAD
from ..warp_specialized.kernel import Schedule
from .blocks import CodeWalk, CodeWeights, encloser, tuples, two_producers
from .variant import RASTER_HEIGHT, Variant


def opener(variant: Variant) -> Any:
    """The device function that starts a block: place the ring, make its barriers."""
    tile, place_ring = variant.tile, ring_placer(variant.layout.barriers)
    start = barrier_initializer(tile.stages, 4 * tile.groups * tile.blocks)
    pair, sync_cluster = tile.pair, barriers.sync_cluster

    @inlined
    def open_block() -> Any:
        ring, full = place_ring()
        if uint32(cuda.threadIdx.x) == uint32(0):
            start(full)
        if pair:
            sync_cluster()
        else:
            cuda.syncthreads()
        return ring, full

    return open_block


def late_opener(variant: Variant) -> Any:
    """The device function that starts a block which fetches nothing before its predecessor ends."""
    start, wait_for_predecessor = opener(variant), dependent_launch.wait_for_predecessor

    @inlined
    def open_block(operands: Any, sizes: Any) -> Any:
        ring, full = start()
        wait_for_predecessor()
        return ring, full, uint32(0)

    return open_block


def closer(tile: BoxTile) -> Any:
    """The device function that ends a block."""
    pair, sync_warp, sync_cluster = tile.pair, barriers.sync_warp, barriers.sync_cluster

    @inlined
    def close(ring: Any, needs: Any) -> None:
        if pair:
            sync_warp()
            sync_cluster()  # the other block writes into this one's stages, and arrives at its barriers

    return close


@inlined
def as_it_is(codes: Any, tiles: Any) -> Any:
    """The map of an operand that is not listed."""
    return codes, False


def tile_producer(layout: SharedLayout, is_w: bool, choose: Any, place: Any, count: Any) -> Any:
    """The device function of the thread that fills the ring with an operand, for all tiles of a block.

    ``choose``: the device function for the map of an operand's codes, and the list of its rows if they lie
    in place. ``place``: the device function for the first row of a tile's codes, and their place in a row
    of scales.
    """
    produce_steps = step_producer(layout, is_w)

    @inlined
    def produce(ring: Any, full: Any, codes: Any, scales: Any, work: Any, span: Any) -> None:
        number, stride, tiles, first, last = work
        stage, phase, total = uint32(0), uint32(0), count(tiles)
        codes, listed = choose(codes, tiles)
        while number < total:
            at, scale_column = place(number, tiles, listed)
            stage, phase = produce_steps(
                ring, full, stage, phase, codes, scales, at, scale_column, first, last, span
            )
            number = uint32(number + stride)

    return produce


# --- one product ------------------------------------------------------------------------------


@inlined
def count_in_product(tiles: Any) -> Any:
    return uint32(tiles[0] * tiles[1])


def tiler(tile: BoxTile) -> Any:
    """The device function for the tiles down and across a product."""
    rows, columns = tile.rows, tile.columns

    @inlined
    def tiles_of(m: Any, n: Any) -> Any:
        down = uint32(uint32(m + uint32(rows - 1)) // uint32(rows))
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        return down, across

    return tiles_of


def product_locator(tile: BoxTile) -> Any:
    """The device function for a tile's first row, first column, and column of scales of w."""
    locate = raster(tile, RASTER_HEIGHT)

    @inlined
    def locate_in_product(number: Any, tiles: Any) -> Any:
        down, across = tiles
        row, column = locate(number, down, across)
        return row, column, column

    return locate_in_product


def dense_producers(variant: Variant) -> tuple[Any, Any]:
    """The device functions of the threads that fetch codes of w and of x for all tiles of a block."""
    locate = product_locator(variant.tile)

    def produce(is_w: bool) -> Any:
        @inlined
        def place(number: Any, tiles: Any, listed: Any) -> Any:
            row, column, _ = locate(number, tiles)
            at = column if is_w else row
            return at, at

        return tile_producer(variant.layout, is_w, as_it_is, place, count_in_product)

    return produce(True), produce(False)


def dense(variant: Variant, weights: CodeWeights) -> Schedule:
    """The schedule of blocks that stay on the card and take tile after tile of one product."""
    tiles_of, read_weights = tiler(variant.tile), weights.read

    @inlined
    def read(operands: Any, sizes: Any, results: Any, _: Any) -> Any:
        maps, terms, y, extent, steps = read_weights(operands, sizes)
        tiles = tiles_of(extent[0], extent[1])
        work = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), tiles, uint32(0), steps
        return maps, terms, y, extent, work, results

    produce = two_producers(weights, *dense_producers(variant))
    walk = CodeWalk(count_in_product, product_locator(variant.tile))
    enclose = encloser(late_opener(variant), read)
    return Schedule(tuples(*weights.words, 4), enclose, produce, closer(variant.tile), walk)


def split_k(variant: Variant, weights: CodeWeights) -> Schedule:
    """The schedule of blocks that make one part of the steps of one tile; the blocks of a tile are a cluster.

    Weights are fetched before the predecessor ends.
    """
    locate, tiles_of = product_locator(variant.tile), tiler(variant.tile)
    read_weights, rank_here, sync_warp = weights.read, barriers.rank_in_cluster, barriers.sync_warp
    arrive_at_cluster_relaxed, wait_for_cluster, sync_cluster = (
        barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.sync_cluster
    )  # fmt: skip
    (operands, size), let_successor_start, start = (
        weights.words, dependent_launch.let_successor_start, opener(variant)
    )  # fmt: skip

    @inlined
    def open_block(operands: Any, sizes: Any) -> Any:
        m, n, steps = sizes[:3]
        split = sizes[-3]
        let_successor_start()
        ring, full = start()
        rank, number = rank_here(), uint32(uint32(cuda.blockIdx.x) // split)
        tiles = tiles_of(m, n)
        first = uint32(uint32(rank * steps) // split)
        last = uint32(uint32(uint32(rank + uint32(1)) * steps) // split)
        work = number, count_in_product(tiles), tiles, first, last  # each block has one tile
        return ring, full, (rank, work)

    @inlined
    def read(operands: Any, sizes: Any, results: Any, part: Any) -> Any:
        maps, terms, y, extent, _ = read_weights(operands, sizes[:-3])
        split, rows_per_block, inverse = sizes[-3:]  # blocks of a cluster; small_m_schedules.py: row_split
        rank, work = part
        return maps, terms, y, extent, work, (rank, split, rows_per_block, inverse, results)

    @inlined
    def aim(work: Any) -> Any:
        number, _, tiles, first, last = work
        row, column, _ = locate(number, tiles)
        return row, column, first, last

    @inlined
    def leave(finals: Any) -> None:
        sync_warp()
        if finals[1] != uint32(1):
            arrive_at_cluster_relaxed()
            wait_for_cluster()
            sync_cluster()

    of_w, of_x = (part_producer(variant.layout, is_w) for is_w in (True, False))
    produce = two_producers(weights, of_w, of_x, aim, leave)
    walk, enclose = CodeWalk(count_in_product, locate), encloser(open_block, read)
    return Schedule(tuples(operands, size + 3, 4), enclose, produce, closer(variant.tile), walk)


def part_producer(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that fetches an operand's steps of one part of a tile."""
    produce_steps, wait_for_predecessor = step_producer(layout, is_w), dependent_launch.wait_for_predecessor

    @inlined
    def produce(ring: Any, full: Any, codes: Any, scales: Any, part: Any, span: Any) -> None:
        row, column, first, last = part
        at = column if is_w else row
        if not is_w:
            wait_for_predecessor()  # the predecessor may have made x
        produce_steps(ring, full, uint32(0), uint32(0), codes, scales, at, at, first, last, span)

    return produce


# --- experts ----------------------------------------------------------------------------------


@inlined
def count_of_plan(tiles: Any) -> Any:
    return tiles[0]


def expert_finder(tile: BoxTile) -> Any:
    """The device function for a tile's first row in the plan, its first column and its expert."""
    rows, locate, load_words = tile.rows, raster(tile, RASTER_HEIGHT), codes.load_words

    @inlined
    def find(number: Any, tiles: Any) -> Any:
        plan, across = tiles[1], tiles[2]
        slot = uint32(number // across)
        v = load_words(plan + uint64(4 * HEAD) + uint64(slot) * uint64(16))
        row, column = locate(uint32(number - uint32(v[1] * across)), v[2], across)
        return uint32(uint32(v[1] * uint32(rows)) + row), column, v[0]

    return find


def experts(variant: Variant, weights: CodeWeights) -> Schedule:
    """The schedule of blocks that stay on the card and take the tiles of all experts from a plan."""
    find, columns, read_weights, load4 = (
        expert_finder(variant.tile), variant.tile.columns, weights.read, codes.load4,
    )  # fmt: skip

    @inlined
    def read(operands: Any, sizes: Any, results: Any, _: Any) -> Any:
        x_map, (plan, use_of_row), expert_columns = operands[1], operands[-2:], sizes[-1]
        maps, terms, y, (m, n), steps = read_weights(operands[:1] + operands[2:-2], sizes[:-1])
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        x_map = x_map if load4(plan + uint64(4)) != uint32(0) else uint64(0)
        count = uint32(load4(plan) * across)
        tiles = count, plan, across, n, expert_columns, x_map, use_of_row
        work = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), tiles, uint32(0), steps
        return maps, terms, y, (m, n), work, (plan, use_of_row)

    @inlined
    def locate(number: Any, tiles: Any) -> Any:
        row, column, expert = find(number, tiles)
        return row, column, uint32(uint32(expert * tiles[4]) + column)

    @inlined
    def choose_rows(codes: Any, tiles: Any) -> Any:
        in_place = tiles[5] != uint64(0)
        return tiles[5] if in_place else codes, in_place

    @inlined
    def place_w(number: Any, tiles: Any, in_place: Any) -> Any:
        _, column, expert = find(number, tiles)
        return uint32(uint32(expert * tiles[3]) + column), uint32(uint32(expert * tiles[4]) + column)

    @inlined
    def place_x(number: Any, tiles: Any, in_place: Any) -> Any:
        row, _, _ = find(number, tiles)
        at = row
        if in_place:
            at = uint32(load4(tiles[6] + uint64(row) * uint64(4)))
        return at, row

    produce_w = tile_producer(variant.layout, True, as_it_is, place_w, count_of_plan)
    produce_x = tile_producer(variant.layout, False, choose_rows, place_x, count_of_plan)
    produce = two_producers(weights, produce_w, produce_x)
    (operands, sizes), walk = weights.words, CodeWalk(count_of_plan, locate)
    enclose = encloser(late_opener(variant), read)
    return Schedule(tuples(operands + 3, sizes + 1, 0), enclose, produce, closer(variant.tile), walk)
