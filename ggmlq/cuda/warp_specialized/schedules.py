"""Schedules of the kernel for packed blocks: where the work units of a block lie (schedule/raster.py).

    dense     one product; the host decides how the last wave of tiles is split along K
    experts   the tiles of all experts: a plan lists them, or the block makes its own; it decides the split

In both, blocks stay on the card until all tiles are computed. The last block of the grid is the first in the
order of work units, and ``work`` is a block's rank in that order, the end of its stages in tiles that are
split, how many of them are left, and the number of whole tiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.integers import load16_l2
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, types, uint32, uint64
from ..machine import tensor_maps
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout
from ..rings.boxed import barrier_initializer
from ..schedule import raster
from ..schedule.groups import BYTES, HEAD, entry_finder, planner
from ..schedule.raster import shared_stages, split_last_wave
from .consumers import HALVES
from .kernel import Schedule
from .producer import plain_producer, producer, reorderer
from .stream_k import INBOX_BARRIER, store_split, stored_split
from .tile import CONSUMER_THREADS, CONSUMER_WARPS, SCRATCH, WarpSpecializedTile

# The order of the tiles of all experts, for the warp-specialised kernel of cuda:grouped.
#
# This is to the tiles of a plan (groups.py, block_plan.py) what raster.py is to one product. A tile is 128
# rows of an expert's weights × a slot of its uses. Those of an expert are computed in sweeps over some slots,
# row of tiles after row: tiles that share weights follow each other, and the x_tiles of a sweep stay in the
# L2 cache.


@cache
def tile_finder() -> Any:
    """The device function for the place of a tile, by a plan in memory or else by the block's own entries.

    ``tile_order``: the plan or 0, the block's entries, the number of experts; tiles of an expert's rows,
    slots of a sweep; the list of uses. It returns the expert, the row of tiles, the slot, its number among
    the expert's slots, and the expert's uses.
    """
    load_words = load16_l2  # blocks that start early have an old first cache
    find_entry = entry_finder()

    @inlined
    def find(tile_order: Any, number: Any) -> Any:
        plan, entries, experts, down, width, _ = tile_order
        any_slot = uint32(number // down)
        if plan != uint64(0):
            v = load_words(plan + uint64(4 * HEAD) + uint64(any_slot) * uint64(16))
            expert, first, slots, uses = uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        else:
            expert, first, slots, uses = find_entry(entries, any_slot, experts)
        sweeps = max(uint32(uint32(slots + uint32(width >> uint32(1))) // width), uint32(1))
        sweep_width = uint32(uint32(uint32(slots + sweeps) - uint32(1)) // sweeps)  # about equal for all
        within, per_sweep = uint32(number - uint32(first * down)), uint32(sweep_width * down)
        sweep = uint32(within // per_sweep)
        within, before = uint32(within - uint32(sweep * per_sweep)), uint32(sweep * sweep_width)
        across = min(sweep_width, uint32(slots - before))
        row = uint32(within // across)
        slot_of_expert = uint32(before + uint32(within - uint32(row * across)))
        return expert, row, uint32(first + slot_of_expert), slot_of_expert, uses

    return find


@cache
def producer_locator() -> Any:
    """The device function for the place of a tile, as the producer needs it: its first fragment row and its
    slot.
    """
    find = tile_finder()

    @inlined
    def locate(tile_order: Any, number: Any) -> Any:
        expert, row, slot, _, _ = find(tile_order, number)
        return uint32(uint32(uint32(expert * tile_order[3]) + row) * uint32(FRAGMENT_ROWS)), slot, uint32(0)

    return locate


def consumer_locator(columns: int) -> Any:
    """The device function for the place of a tile with ``columns`` columns, as consumers need it."""
    find = tile_finder()

    @inlined
    def locate(tile_order: Any, number: Any, thread_at: Any) -> Any:
        (below, column), uses_of_columns = thread_at, tile_order[5]
        _, row, slot, slot_of_expert, uses = find(tile_order, number)
        row, there = uint32(row * uint32(TILE_ROWS) + below), uint32(uses - slot_of_expert * uint32(columns))
        return row, column, there, uses_of_columns + uint64(uint32(slot * uint32(columns))) * uint64(4)

    return locate


# Types of parameters; dense() and experts() say what they are.
ADDRESSES, FOUR, FIVE = types.UniTuple(uint64, 2), types.UniTuple(uint32, 4), types.UniTuple(uint32, 5)
RESULT, X, ADDEND = (
    types.Tuple((uint64, uint32, uint64, uint32)), types.Tuple((uint64, uint32, uint32)),
    types.Tuple((uint64, uint32)),
)  # fmt: skip
BEFORE_MAP = ADDRESSES, RESULT, ADDRESSES, X, FOUR, FOUR  # 112 bytes, so that the map is aligned
X_MAP, MAP_WORDS = 19, tensor_maps.SIZE // 8  # words before the map, and its own
DENSE = *BEFORE_MAP, types.UniTuple(uint64, MAP_WORDS), ADDEND, FIVE, FIVE
TWO, THREE, LISTS = types.UniTuple(uint32, 2), types.UniTuple(uint32, 3), types.UniTuple(uint64, 3)
EXPERTS = ADDRESSES, LISTS, uint64, ADDRESSES, THREE, TWO, THREE


class Walk(NamedTuple):
    """Device functions by which consumers go from work unit to work unit."""

    begin: Any  # () before the first
    # (order of tiles, number, the thread's row and column in a tile) -> row of weights, column, number of
    # columns, list of rows of y or 0
    locate: Any
    read_split: Any  # (split, scratch) -> the split of the last wave; called anew, so no register holds it


@inlined
def begin_at_once() -> None:
    """The beginning of consumers that wait for nothing."""


@inlined
def split_of_host(split: Any, scratch: Any) -> Any:
    """The split of the last wave where the host decides it: the arguments of Split of
    cost/warp_specialized.py, and the whole tiles.
    """
    return split


def block_starter(layout: PackedLayout, tile: WarpSpecializedTile, has_inbox: bool) -> Any:
    """The device function that places a block's ring, and makes barriers and scratch words by one thread.

    It returns the ring, its full barriers, the warp and the lane. Other threads do not wait here.
    """
    start, place_warp, first_lane, pinned, put, init, base = (
        barrier_initializer(tile.stages(layout), CONSUMER_WARPS), warp_and_lane, barriers.from_first_lane,
        barriers.pinned, ptx.put, barriers.init, ptx.shared_base,
    )  # fmt: skip
    barriers_at, scratch = tile.stages(layout) * tile.stage(layout), 16 * tile.stages(layout)

    @inlined
    def start_block() -> Any:
        warp, lane = place_warp()
        warp, lane = first_lane(warp), pinned(lane)
        ring = first_lane(uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00)))
        full = uint32(ring + uint32(barriers_at))
        if uint32(cuda.threadIdx.x) == uint32(0):
            if has_inbox:
                init(uint32(full + uint32(scratch + INBOX_BARRIER)), uint32(1))
            start(full)
            for i in range(2):
                put(uint32(full + uint32(scratch + 4 * i)), int32(0))
        return ring, full, warp, lane

    return start_block


# --- one product --------------------------------------------------------------------------------


def dense(layout: PackedLayout, tile: WarpSpecializedTile, transposed: bool = False) -> Schedule:
    """The schedule of one product; ``transposed``: of y @ q, whose y has 16 bits and is read as it lies.

    Then K stands for the rows of weights, and n for their columns.
    """
    start_block, let_successor_start = block_starter(layout, tile, True), dependent_launch.let_successor_start

    def enclose(run: Any) -> Any:
        def product(
            operands: Any,  # tensor map of the packed weights; x_tiles, 16 bits [steps, height, 64]
            results: Any,  # y [m, n] and a bias, with their kinds: epilogue/results.py
            exchange: Any,  # partial sums, float32 [slots, a tile], and flags, uint32: stream_k.py
            rows: Any,  # x [m, k], the kind of its floats or HALVES, k: producer.py
            sizes: Any,  # m, n, steps of K, height of x_tiles; 0 where x is read as it lies: producer.py
            order: Any,  # schedule/raster.py
            matrix: Any,  # the map of x, or zeros
            addend: Any,  # a residual or a gate of y's shape, and its kind; or 0: epilogue/gates.py
            late: Any,  # producer.py
            split: Any,  # of cost/warp_specialized.py
        ) -> None:
            let_successor_start()  # it finds no room before blocks of this kernel end, so all of these run
            ring, full, warp, lane = start_block()
            cuda.syncthreads()
            (m, n, steps, height), (x, kind, k), tile_order = sizes, rows, (order, sizes[0])
            last = uint32(uint32(cuda.gridDim.x) - uint32(1))
            rank = uint32(last - uint32(cuda.blockIdx.x))
            whole_tiles = uint32(order[3] - split[0])
            begin, end = shared_stages(rank, uint32(steps >> uint32(1)), split)
            work = rank, end, uint32(end - begin), whole_tiles
            origins = operands[0], operands[1], exchange[1], steps, height
            sources = lane, origins, (x, kind, m, k), tile_order, late, work
            outputs, parts = (results, exchange[0], exchange[1]), (*split, whole_tiles)
            plain, halves = height == uint32(0), kind == uint32(HALVES)
            needs = lane, outputs, tile_order, (n, steps), work, parts, plain, halves, addend
            run(ring, full, warp, sources, needs)

        return product

    make_producers = column_producers if transposed else wide_producers if tile.wide else narrow_producers
    produce = make_producers(layout, tile)
    walk = Walk(begin_at_once, raster.consumer_locator(tile.columns), split_of_host)
    return Schedule(DENSE, enclose, produce, inlined(lambda ring, needs: None), walk)


def narrow_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warp beside the consumers: one thread fetches x_tiles, or rows as they lie.

    ``sources``: the lane; the map of weights, x_tiles, flags, steps of K, height of x_tiles or 0 for none; x,
    the kind of its floats, its rows and columns; where tiles lie; producer.py; work.
    """
    produce_x_tiles = producer(layout, tile, raster.locate_for_producer, reorders=False)
    produce_rows = plain_producer(layout, tile, raster.locate_for_producer)
    x_map = boxes.parameter_map(X_MAP)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        _, origins, _, tile_order, late, work = sources
        maps = origins[0], x_map()
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            if origins[4] != uint32(0):
                produce_x_tiles(ring, full, origins, tile_order, late, work)
            else:
                produce_rows(ring, full, maps, origins[3], tile_order, work)

    return produce


def column_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warp beside the consumers, for y @ q; ``sources``: as of the one above."""
    produce_rows = plain_producer(layout, tile, raster.locate_for_producer, transposed=True)
    x_map = boxes.parameter_map(X_MAP)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        _, origins, _, tile_order, _, work = sources
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            produce_rows(ring, full, (origins[0], x_map()), origins[3], tile_order, work)

    return produce


def wide_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warpgroup beside the consumers.

    One warp fetches, the others make x_tiles (producer.py). ``sources``: as of narrow_producers().
    """
    produce_x_tiles = producer(layout, tile, raster.locate_for_producer, reorders=True)
    columns, wait_for_predecessor, reorder_rows = (
        tile.columns, dependent_launch.wait_for_predecessor, reorderer(),
    )  # fmt: skip

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        lane, origins, (x, kind, m, k), tile_order, late, work = sources
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            produce_x_tiles(ring, full, origins, tile_order, late, work)
        elif warp > uint32(CONSUMER_WARPS) and late[4] > uint32(0):
            wait_for_predecessor()  # it may have made x
            _, x_tiles, flags, steps, height = origins
            rows_per_sweep = uint32(tile_order[0][1] * uint32(columns))
            reorder_rows(x, x_tiles, flags, late, (kind, m, k, steps, height), rows_per_sweep, lane)

    return produce


# --- experts ------------------------------------------------------------------------------------


def experts(layout: PackedLayout, tile: WarpSpecializedTile) -> Schedule:
    """The schedule of the tiles of all experts."""
    start_block, scratch = block_starter(layout, tile, has_inbox=False), 16 * tile.stages(layout)
    make_plan, plan_at = planner(tile.threads, stores_experts=False), scratch + SCRATCH
    columns, load_relaxed, let_successor_start = (
        tile.columns, barriers.load_relaxed, dependent_launch.let_successor_start,
    )  # fmt: skip

    def enclose(run: Any) -> Any:
        def product(
            operands: Any,  # tensor map of the packed weights of all experts; x_tiles, bfloat16
            lists: Any,  # plan of schedule/groups.py or 0, the use of each column, uint32; ids, int64 [uses]
            y: Any,  # float32 [uses, n]
            exchange: Any,  # as of dense()
            sizes: Any,  # n, steps of K, height of x_tiles
            sweep: Any,  # tiles down an expert, slots of a sweep: warp_specialized/schedules.py
            counts: Any,  # uses, experts, and least_saved() of cost/warp_specialized.py
        ) -> None:
            (plan, uses_of_columns, ids), (n, steps, height), (down, width) = lists, sizes, sweep
            uses, count, gain = counts
            ring, full, warp, lane = start_block()
            entries = uint32(full + uint32(plan_at))
            if plan != uint64(0):
                slots = uint32(load_relaxed(plan))  # written before the predecessor let this kernel start
                cuda.syncthreads()
            else:
                slots = make_plan(entries, entries, ids, uses, count, uint32(columns))
            tiles, stages, blocks = uint32(slots * down), uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
            rank = uint32(uint32(blocks - uint32(1)) - uint32(cuda.blockIdx.x))
            split = split_last_wave(tiles, stages, blocks, gain)
            begin, end = shared_stages(rank, stages, split)
            stages_left, whole_tiles = uint32(end - begin), uint32(tiles - split[0])
            if uint32(cuda.threadIdx.x) == uint32(0):
                store_split(split, whole_tiles, uint32(full + uint32(scratch)))
            cuda.syncthreads()
            work, outputs = (rank, end, stages_left, whole_tiles), (y, exchange[0], exchange[1])
            tile_order = plan, entries, count, down, width, uses_of_columns
            origins = operands[0], operands[1], exchange[1], steps, height
            nothing = uint64(0), uint32(0)
            needs = lane, outputs, tile_order, (n, steps), work, uint32(0), False, False, nothing
            run(ring, full, warp, (origins, tile_order, work), needs)

        return product

    @inlined
    def close(ring: Any, needs: Any) -> None:
        let_successor_start()  # at the start, where it finds no room anyway, it costs narrow tiles a spill

    # What runs before writes the uses of columns, and clears flags.
    walk = Walk(dependent_launch.wait_for_predecessor, consumer_locator(columns), stored_split)
    return Schedule(EXPERTS, enclose, expert_producer(layout, tile), close, walk, BYTES)


def expert_producer(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warps beside the consumers: one thread fetches x_tiles.

    ``sources``: the map of weights, x_tiles, flags, steps of K, height of x_tiles; where tiles lie; work.
    """
    produce_x_tiles = producer(layout, tile, producer_locator(), reorders=False)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        origins, tile_order, work = sources
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            produce_x_tiles(ring, full, origins, tile_order, (uint32(0), uint32(0)), work)

    return produce
