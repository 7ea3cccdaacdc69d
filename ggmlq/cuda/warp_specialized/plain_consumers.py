"""Consumers of dense products: as those of consumers.py, for activations in either order and either kind.

Where x lies in stages as the caller has it, a lane takes weights in that order, too (packed/natural.py).
Where it is float16, weights are halves (packed/half_weights.py), otherwise bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..epilogue import results
from ..epilogue.residual import residual_adder
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, warpgroup
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import opaque_zero
from ..intrinsics.language import cuda, uint32, uint64
from ..packed.half_weights import half_weights, serves_halves
from ..packed.layout import ROWS, PackedLayout
from ..packed.natural import lane_order, natural_loader
from ..packed.weights import fragment_weights
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .plain_rows import reads_plain
from .stream_k import SplitEpilogue
from .tile import WarpSpecializedTile

HALVES = 3  # the number of x's kind where weights are halves, behind those of KINDS


def starter(columns: int, kind: str) -> Any:
    """The device function that starts the products of one step, once those of the step before are done;
    ``kind``: "bf16" or "f16".
    """
    advance = warpgroup.advancer(columns, kind)

    @inlined
    def start(total: Any, a: Any, at: Any) -> Any:
        rows = (
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )  # fmt: skip
        return advance(total, rows, uint32(at))

    return start


def orders(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device functions for the order of a lane's columns, and for loading its words in that order.

    Some tiles and types know one order alone.
    """
    if reads_plain(layout, tile):
        return lane_order(layout), natural_loader(layout)
    load_as_packed = fragment_weights(layout).load

    @inlined
    def load(at: Any, lane: Any, order: Any, words: Any) -> None:
        load_as_packed(at, lane, words)

    return inlined(lambda lane, plain: lane), load


def accumulator(layout: PackedLayout, tile: WarpSpecializedTile, halves: bool) -> Any:
    """The device function for the sums of stages ``first`` … ``last - 1``, as that of consumers.py.

    ``halves``: of float16.
    """
    stages, length, x_tile_bytes = tile.stages(layout), tile.stage(layout), tile.x_tile_bytes
    single, after, sums = tile.fragments == 1, stage_advancer(stages), warpgroup.sums(tile.columns)
    multiply = starter(tile.columns, "f16" if halves else "bf16")
    weights_at, row_bytes = tile.fragments * x_tile_bytes, tile.box_row(layout)
    second = tile.next_fragment(layout)
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, warpgroup.wait
    (count, _, unpack, scale), (_, load) = fragment_weights(layout), orders(layout, tile)
    unpack, scale = (half_weights(layout), 1.0) if halves else (unpack, scale)
    zeros, times, factor, scales = sums.zeros, sums.times, np.float32(scale), scale != 1

    @inlined
    def accumulate(
        ring: Any, full: Any, warp: Any, lane: Any, order: Any, stage: Any, phase: Any, first: Any, last: Any,
        opaque: Any,
    ) -> Any:  # fmt: skip
        even, odd, words = (
            cuda.local.array(16, uint32), cuda.local.array(16, uint32), cuda.local.array(count, uint32),
        )  # fmt: skip
        warp_at = uint32(uint32(weights_at) + warp * uint32(row_bytes))
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * uint32(length))
        wait(uint32(full + stage * uint32(8)), phase)
        load(uint32(at + warp_at), lane, order, words)
        unpack(words, even, opaque)
        while i < last:
            here, empty = at, uint32(full + uint32(8 * stages) + stage * uint32(8))
            if single:
                stage, phase = after(stage, phase)
                at = uint32(ring + stage * uint32(length))
                wait(uint32(full + stage * uint32(8)), phase)
                load(uint32(at + warp_at), lane, order, words)
            else:
                load(uint32(at + warp_at + uint32(second)), lane, order, words)
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
            load(uint32(at + warp_at), lane, order, words)  # after the last stage: any words
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


def either_accumulator(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function for the sums of stages, of either kind of floats where the type allows both."""
    of_bfloats = accumulator(layout, tile, False)
    of_halves: Any = accumulator(layout, tile, True) if serves_halves(layout) else None

    @inlined
    def only_bfloats(
        halves: Any, ring: Any, full: Any, warp: Any, lane: Any, order: Any, stage: Any, phase: Any,
        first: Any, last: Any, opaque: Any,
    ) -> Any:  # fmt: skip
        return of_bfloats(ring, full, warp, lane, order, stage, phase, first, last, opaque)

    @inlined
    def accumulate(
        halves: Any, ring: Any, full: Any, warp: Any, lane: Any, order: Any, stage: Any, phase: Any,
        first: Any, last: Any, opaque: Any,
    ) -> Any:  # fmt: skip
        if halves:
            total, stage, phase = of_halves(ring, full, warp, lane, order, stage, phase, first, last, opaque)
        else:
            total, stage, phase = of_bfloats(ring, full, warp, lane, order, stage, phase, first, last, opaque)
        return total, stage, phase

    return accumulate if of_halves else only_bfloats


def plain_consumer(
    layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, split_epilogue: SplitEpilogue
) -> Any:  # fmt: skip
    """The device function of the consumer warps.

    Operands are those of consumers.py, whether x lies in the order of its columns, whether it is float16, and
    a residual with its kind.

    The block with the first stages of a tile adds the residual to its sums.
    """
    accumulate, (make_order, _) = either_accumulator(layout, tile), orders(layout, tile)
    announce, store_partial, finish = split_epilogue
    behind, ends, load_bias = tile.stages(layout) * 16, thread_sums(tile.columns), results.bias_loader()
    write, write16, add = ends.write, ends.write16, residual_adder(tile.columns, True)
    nothing, wait_for_predecessor = results.NOTHING, dependent_launch.wait_for_predecessor

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, lane: Any, outputs: Any, schedule: Any, sizes: Any, end: Any,
        stages_left: Any, rank: Any, split: Any, plain: Any, halves: Any, residual: Any, residual_kind: Any,
    ) -> None:  # fmt: skip
        (n, steps), next_whole, y, scratch = sizes, rank, outputs[0], uint32(full + uint32(behind))
        stage, phase, opaque = uint32(0), uint32(0), opaque_zero(steps)
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        thread_at = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        split_tiles, split_blocks, splits, block_stages, longer_blocks, whole_tiles = split
        position, order = (rank, split_blocks, split_tiles), make_order(lane, plain)
        announce(outputs[2], position)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, first, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages, blocks, whole_tiles
            )
            row, column, limit, _ = locate(schedule, number, thread_at)
            total, stage, phase = accumulate(
                halves, ring, full, warp, lane, order, stage, phase, first, last, opaque
            )
            whole, low, high = first == uint32(0) and last == stages, nothing, nothing
            if whole:
                low, high = load_bias(y, row, n), load_bias(y, uint32(row + uint32(8)), n)
            if residual != uint64(0) and first == uint32(0):
                wait_for_predecessor()  # it may have made the residual
                total = add(total, residual, residual_kind, column, row, limit, n, low, high)
                low, high = nothing, nothing
            at, kind, _, _ = y
            if not whole:
                number = uint32(number - whole_tiles)
                store_partial(total, outputs[1], outputs[2], number, first, position, scratch)
            elif kind == uint32(0):
                write(total, at, column, row, limit, n, low, high)
            else:
                write16(total, at, column, row, limit, n, low, high, uint32(kind - uint32(1)))
        shared = split_tiles, split_blocks, splits, block_stages, longer_blocks
        finish(outputs, schedule, thread_at, n, stages, position, shared, whole_tiles, scratch)

    return consume
