"""The consumers: warpgroups that unpack fragments and multiply them with x_tiles, work unit after work unit.

There are two warpgroups, each with 64 rows of weights. While the tensor cores multiply one set of
registers, the next fragment is unpacked into the other set; its words were loaded before that. Whichever
warpgroup is ready takes the tensor cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..epilogue import listed_rows, results
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import warpgroup
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import opaque_zero
from ..intrinsics.language import cuda, uint32
from ..packed.layout import ROWS, PackedLayout
from ..packed.weights import fragment_weights
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .stream_k import SplitEpilogue, through_memory
from .tile import WarpSpecializedTile


def multiplier(columns: int) -> Any:
    """The device function that starts the products of one step with a lane's registers.

    It waits for the products of the step before, whose registers and stage are free then.
    """
    advance = warpgroup.sums(columns).advance

    @inlined
    def multiply(total: Any, a: Any, at: Any) -> Any:
        rows = (
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )  # fmt: skip
        return advance(total, rows, uint32(at))

    return multiply


def accumulator(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function for the sums of stages ``first`` … ``last - 1``.

    It returns the sums, and the ring's next stage with its parity. Three fragments are in flight: one is
    multiplied, the next is unpacked meanwhile, and the words of the one after that are being loaded into
    registers. A stage is released once the products after its last ones have been started, for only then
    are its own complete.
    """
    stages, length, x_tile_bytes = tile.stages(layout), tile.stage(layout), tile.x_tile_bytes
    single, after, sums = tile.fragments == 1, stage_advancer(stages), warpgroup.sums(tile.columns)
    multiply = multiplier(tile.columns)
    weights_at, row_bytes = tile.fragments * x_tile_bytes, tile.box_row(layout)
    second = tile.next_fragment(layout)
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, warpgroup.wait
    count, load, unpack, scale = fragment_weights(layout)
    zeros, times, factor, scales = sums.zeros, sums.times, np.float32(scale), scale != 1

    @inlined
    def accumulate(
        ring: Any, full: Any, warp: Any, lane: Any, stage: Any, phase: Any, first: Any, last: Any, opaque: Any
    ) -> Any:
        even, odd, words = (
            cuda.local.array(16, uint32), cuda.local.array(16, uint32), cuda.local.array(count, uint32),
        )  # fmt: skip
        warp_at = uint32(uint32(weights_at) + warp * uint32(row_bytes))
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * uint32(length))
        wait(uint32(full + stage * uint32(8)), phase)
        load(uint32(at + warp_at), lane, words)
        unpack(words, even, opaque)
        while i < last:
            here, empty = at, uint32(full + uint32(8 * stages) + stage * uint32(8))
            if single:
                stage, phase = after(stage, phase)
                at = uint32(ring + stage * uint32(length))
                wait(uint32(full + stage * uint32(8)), phase)
                load(uint32(at + warp_at), lane, words)
            else:
                load(uint32(at + warp_at + uint32(second)), lane, words)
            total = multiply(total, even, here)
            if before != uint32(0) and lane == uint32(0):
                arrive(before)
            unpack(words, odd, opaque)
            here, before = at if single else uint32(at + uint32(x_tile_bytes)), empty
            if single:
                empty = uint32(full + uint32(8 * stages) + stage * uint32(8))
            stage, phase = after(stage, phase)
            i, at = uint32(i + uint32(1)), uint32(ring + stage * uint32(length))
            if i < last:
                wait(uint32(full + stage * uint32(8)), phase)
            load(uint32(at + warp_at), lane, words)  # after the last stage: any words, never multiplied
            total = multiply(total, odd, here)
            if single and lane == uint32(0):
                arrive(before)
            before = empty
            unpack(words, even, opaque)
        wait_for_products()
        if lane == uint32(0):
            arrive(before)
        if scales:
            total = times(total, factor)
        return total, stage, phase

    return accumulate


@inlined
def split_of_host(split: Any, scratch: Any) -> Any:
    """The split of the last wave where the host decides it: the arguments of cost/split.py's Split, and the
    whole tiles.
    """
    return split


def consumer(
    layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, read_split: Any = split_of_host,
    listed: bool = False, split_epilogue: SplitEpilogue | None = None,
) -> Any:  # fmt: skip
    """The device function of the consumer warps.

    ``locate``: the device function (schedule, number of a tile, thread_at) for a thread's place in the
    results: row of weights, column, number of columns and, if ``listed``, the list of the rows of y that
    columns go to. ``thread_at``: the thread's row and column in a tile. ``read_split``: the device function
    (split, scratch) for the split of the last wave; it is called anew each time, so that no register holds
    the split during products. ``split_epilogue``: the functions of blocks that share a tile. The first of
    ``outputs`` is a result as epilogue/results.py has it; if ``listed``, the address of float32.
    """
    accumulate = accumulator(layout, tile)
    (announce, store_partial, finish) = split_epilogue or through_memory(tile, locate, listed)
    behind, ends, load_bias = tile.stages(layout) * 16, thread_sums(tile.columns), results.bias_loader()
    write, write16 = ends.write, ends.write16
    hold, scatter = listed_rows.holder(tile.columns), listed_rows.scatterer(tile.columns)

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, lane: Any, outputs: Any, schedule: Any, sizes: Any, end: Any,
        stages_left: Any, rank: Any, split: Any,
    ) -> None:  # fmt: skip
        (n, steps), next_whole, y, scratch = sizes, rank, outputs[0], uint32(full + uint32(behind))
        stage, phase, opaque = uint32(0), uint32(0), opaque_zero(steps)
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        thread_at = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        split_tiles, split_blocks, _, _, _, whole_tiles = read_split(split, scratch)
        announce(outputs[2], (rank, split_blocks, split_tiles))
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, first, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages, blocks, whole_tiles
            )
            row, column, limit, rows_of_columns = locate(schedule, number, thread_at)
            if listed:
                rows_of_y = hold(rows_of_columns, lane, limit)
            total, stage, phase = accumulate(ring, full, warp, lane, stage, phase, first, last, opaque)
            split_tiles, split_blocks, _, _, _, whole_tiles = read_split(split, scratch)
            if first > uint32(0) or last < stages:
                position = rank, split_blocks, split_tiles
                store_partial(
                    total, outputs[1], outputs[2], uint32(number - whole_tiles), first, position, scratch
                )
            elif listed:
                scatter(total, y, rows_of_y, column, row, n)
            else:
                at, kind, _, _ = y
                low, high = load_bias(y, row, n), load_bias(y, uint32(row + uint32(8)), n)
                if kind == uint32(0):
                    write(total, at, column, row, limit, n, low, high)
                else:
                    write16(total, at, column, row, limit, n, low, high, uint32(kind - uint32(1)))
        split_tiles, split_blocks, splits, block_stages, longer_blocks, whole_tiles = read_split(
            split, scratch
        )
        position, split = (
            (rank, split_blocks, split_tiles),
            (split_tiles, split_blocks, splits, block_stages, longer_blocks),
        )
        finish(outputs, schedule, thread_at, n, stages, position, split, whole_tiles, scratch)

    return consume
