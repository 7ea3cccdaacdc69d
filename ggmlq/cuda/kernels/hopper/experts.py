"""The schedule of the warp-specialised kernel for the tiles of all experts, and its results.

This is to the tiles of a plan (layouts/groups.py) what tiles.py is to one product: a plan lists them, or
the block makes its own. The kernel decides itself how the last wave is split along K. A tile is 128 rows of
an expert's weights × a slot of its uses. Those of an expert are computed in sweeps over some slots, row of
tiles after row: tiles that share weights follow each other, and the x_tiles of a sweep stay in the L2 cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...intrinsics import hopper
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, types, uint32, uint64
from ...intrinsics.ptx import load16_l2
from ...layouts.groups import BYTES, HEAD, entry_finder, planner
from ...layouts.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout
from ..epilogue import results
from .frame import Schedule
from .kernel import TWO_ADDRESSES, Job, Operands, TileResults, Walk, XRows, block_starter, x_tile_producer
from .stream_k import Outputs, store_split, stored_split
from .tiles import (
    CONSUMER_THREADS,
    SCRATCH_BYTES,
    ConsumerPlace,
    LastWave,
    LateXTiles,
    ProducerPlace,
    WarpSpecializedTile,
    Work,
    shared_stages,
    split_last_wave,
)

TWO_WORDS, THREE_WORDS, LISTS = (
    types.UniTuple(uint32, 2),
    types.UniTuple(uint32, 3),
    types.UniTuple(uint64, 3),
)
EXPERTS = TWO_ADDRESSES, LISTS, uint64, TWO_ADDRESSES, THREE_WORDS, TWO_WORDS, THREE_WORDS


class ExpertOrder(NamedTuple):
    """The order of the tiles of all experts."""

    plan: Any  # address, or 0 where the block made its own entries
    entries: Any  # address of these in shared memory
    experts: Any
    down: Any  # tiles of an expert's rows
    width: Any  # slots of a sweep
    uses_of_columns: Any  # address of a list: the use of each column of all slots


class ExpertTile(NamedTuple):
    """The place of a tile among those of all experts."""

    expert: Any
    row: Any  # of tiles
    slot: Any
    slot_of_expert: Any
    uses: Any  # of the expert


@cache
def tile_finder() -> Any:
    """The device function for the ExpertTile of a number, by a plan in memory or else by the block's own
    entries; ``order``: an ExpertOrder.
    """
    load_words = load16_l2  # blocks that start early have an old first cache
    find_entry = entry_finder()

    @inlined
    def find(order: Any, number: Any) -> Any:
        down, width, any_slot = order.down, order.width, uint32(number // order.down)
        if order.plan != 0:
            v = load_words(order.plan + 4 * HEAD + uint64(any_slot) * 16)
            expert, first, slots, uses = uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        else:
            expert, first, slots, uses = find_entry(order.entries, any_slot, order.experts)
        sweeps = max(uint32(uint32(slots + uint32(width >> 1)) // width), uint32(1))
        sweep_width = uint32(uint32(uint32(slots + sweeps) - 1) // sweeps)  # about equal for all
        within, per_sweep = uint32(number - uint32(first * down)), uint32(sweep_width * down)
        sweep = uint32(within // per_sweep)
        within, before = uint32(within - uint32(sweep * per_sweep)), uint32(sweep * sweep_width)
        across = min(sweep_width, uint32(slots - before))
        row = uint32(within // across)
        slot_of_expert = uint32(before + uint32(within - uint32(row * across)))
        return ExpertTile(expert, row, uint32(first + slot_of_expert), slot_of_expert, uses)

    return find


@cache
def producer_locator() -> Any:
    """The device function for the ProducerPlace of a tile."""
    find = tile_finder()

    @inlined
    def locate(order: Any, number: Any) -> Any:
        tile = find(order, number)
        row = uint32(uint32(uint32(tile.expert * order.down) + tile.row) * FRAGMENT_ROWS)
        return ProducerPlace(row, tile.slot, uint32(0))

    return locate


def consumer_locator(columns: int) -> Any:
    """The device function for the ConsumerPlace in a tile with ``columns`` columns."""
    find = tile_finder()

    @inlined
    def locate(order: Any, number: Any, thread_at: Any) -> Any:
        below, column = thread_at
        tile = find(order, number)
        row = uint32(tile.row * TILE_ROWS + below)
        there = uint32(tile.uses - tile.slot_of_expert * columns)
        rows_of_columns = order.uses_of_columns + uint64(uint32(tile.slot * columns)) * 4
        return ConsumerPlace(row, column, there, rows_of_columns)

    return locate


def experts(layout: PackedLayout, tile: WarpSpecializedTile) -> Schedule:
    """The schedule of the tiles of all experts."""
    start_block, scratch = block_starter(layout, tile, has_inbox=False), 16 * tile.stages(layout)
    make_plan, plan_at = planner(tile.threads, stores_experts=False), scratch + SCRATCH_BYTES
    columns = tile.columns

    def enclose(run: Any) -> Any:
        def product(
            operands: Any,  # tensor map of the packed weights of all experts; x_tiles, bfloat16
            lists: Any,  # plan of layouts/groups.py or 0, the use of each column, uint32; ids, int64 [uses]
            y: Any,  # float32 [uses, n]
            exchange: Any,  # partial sums and flags: stream_k.py
            sizes: Any,  # n, steps of K, height of x_tiles
            sweep: Any,  # tiles down an expert, slots of a sweep
            counts: Any,  # uses, experts, and least_saved() of cost/warp_specialized.py
        ) -> None:
            (plan, uses_of_columns, ids), (n, steps, height), (down, width) = lists, sizes, sweep
            uses, count, gain = counts
            block = start_block()
            full = block.full
            entries = uint32(full + plan_at)
            if plan != 0:
                slots = hopper.load_relaxed(plan)  # written before the predecessor let this kernel start
                cuda.syncthreads()
            else:
                slots = make_plan(entries, entries, ids, uses, count, uint32(columns))
            tiles, stages, blocks = uint32(slots * down), uint32(steps >> 1), uint32(cuda.gridDim.x)
            # The last block of the grid is the first in the order of work units: tiles.py.
            rank = uint32(uint32(blocks - 1) - uint32(cuda.blockIdx.x))
            split = split_last_wave(tiles, stages, blocks, gain)
            begin, end = shared_stages(rank, stages, split)
            stages_left = uint32(end - begin)
            wave = LastWave(
                split.split_tiles, split.split_blocks, split.splits, split.block_stages, split.longer_blocks,
                whole_tiles=uint32(tiles - split.split_tiles),
            )  # fmt: skip
            work = Work(rank, end, stages_left, wave.whole_tiles)
            if uint32(cuda.threadIdx.x) == 0:
                store_split(wave, uint32(full + scratch))
            cuda.syncthreads()  # all consumers read the split from there
            tile_order = ExpertOrder(plan, entries, count, down, width, uses_of_columns)
            zero, nobody = uint32(0), uint64(0)
            job = Job(
                lane=block.lane, tile_order=tile_order, work=work, n=n, steps=steps,
                operands=Operands(operands[0], operands[1], exchange[1], height),
                rows=XRows(nobody, zero, zero, zero),
                late=LateXTiles(zero, zero, zero, zero, zero),
                outputs=Outputs(y, exchange[0], exchange[1]),
                wave=zero,  # read from shared memory
                natural=False,
                halves=False,
                addend=(nobody, zero),
            )  # fmt: skip
            run(block.ring, full, block.warp, job)

        return product

    @inlined
    def close(ring: Any, job: Any) -> None:
        # At the start, where it finds no room anyway, it costs narrow tiles a spill.
        hopper.let_successor_start()

    # What runs before writes the uses of columns, and clears flags.
    walk = Walk(hopper.wait_for_predecessor, consumer_locator(columns), stored_split)
    return Schedule(EXPERTS, enclose, expert_producer(layout, tile), close, walk, BYTES)


def expert_producer(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warps beside the consumers: one thread fetches x_tiles."""
    produce_x_tiles = x_tile_producer(layout, tile, producer_locator(), reorders=False)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, job: Any) -> None:
        if uint32(cuda.threadIdx.x) == CONSUMER_THREADS:
            produce_x_tiles(ring, full, job)

    return produce


def listed_results(tile: WarpSpecializedTile) -> TileResults:
    """The functions for rows of float32 that a list names for the columns of a tile."""
    scatter, nothing = results.scatterer(tile.columns), results.NOTHING

    @inlined
    def add(
        total: Any, y: Any, place: Any, n: Any, first: Any, last: Any, stages: Any, addend: Any
    ) -> Any:  # fmt: skip
        return total, nothing, nothing

    @inlined
    def write(total: Any, biases: Any, y: Any, place: Any, n: Any, rows_of_y: Any) -> None:
        scatter(total, y, rows_of_y, place.column, place.row, n)

    return TileResults(results.holder(tile.columns), add, write)
