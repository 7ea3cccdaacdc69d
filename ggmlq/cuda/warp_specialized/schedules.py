"""Schedules of the kernel for packed blocks: where the work units of a block lie (schedule/work_units.py).

    dense     one product; the host decides how the last wave of tiles is split along K
    experts   the tiles of all experts: a plan lists them, or the block makes its own; it decides the split

In both, blocks stay on the card until all tiles are computed. The last block of the grid is the first in the
order of work units, and ``work`` is a block's rank in that order, the end of its stages in tiles that are
split, how many of them are left, and the number of whole tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, types, uint32, uint64
from ..machine import tensor_maps
from ..packed.layout import PackedLayout
from ..rings.boxed import barrier_initializer
from ..schedule import grouped, raster
from ..schedule.block_plan import BYTES, planner
from ..schedule.work_units import shared_stages, split_last_wave
from .cluster_split import INBOX_BARRIER
from .consumers import HALVES
from .kernel import Schedule
from .late_activations import reorderer
from .plain_rows import plain_producer
from .producer import producer
from .stream_k import store_split, stored_split
from .tile import CONSUMER_THREADS, CONSUMER_WARPS, SCRATCH, WarpSpecializedTile

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
    """The split of the last wave where the host decides it: the arguments of cost/split.py's Split, and the
    whole tiles.
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
            rows: Any,  # x [m, k], the kind of its floats or HALVES, k: late_activations.py
            sizes: Any,  # m, n, steps of K, height of x_tiles; 0 where x is read as it lies: plain_rows.py
            order: Any,  # schedule/raster.py
            matrix: Any,  # the map of x, or zeros
            addend: Any,  # a residual or a gate of y's shape, and its kind; or 0: epilogue/gate_factors.py
            late: Any,  # late_activations.py
            split: Any,  # of cost/split.py
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
    the kind of its floats, its rows and columns; where tiles lie; late_activations.py; work.
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

    One warp fetches, the others make x_tiles (late_activations.py). ``sources``: as of narrow_producers().
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
            sweep: Any,  # tiles down an expert, slots of a sweep: schedule/grouped.py
            counts: Any,  # uses, experts, and least_saved() of cost/split.py
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
    walk = Walk(dependent_launch.wait_for_predecessor, grouped.consumer_locator(columns), stored_split)
    return Schedule(EXPERTS, enclose, expert_producer(layout, tile), close, walk, BYTES)


def expert_producer(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warps beside the consumers: one thread fetches x_tiles.

    ``sources``: the map of weights, x_tiles, flags, steps of K, height of x_tiles; where tiles lie; work.
    """
    produce_x_tiles = producer(layout, tile, grouped.producer_locator(), reorders=False)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        origins, tile_order, work = sources
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            produce_x_tiles(ring, full, origins, tile_order, (uint32(0), uint32(0)), work)

    return produce
