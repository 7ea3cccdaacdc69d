"""The consumers: warpgroups that unpack fragments and multiply them with activations, work unit after unit.

There are two warpgroups, each with 64 rows of weights. While the tensor cores multiply one set of
registers, the next fragment is unpacked into the other set; its words were loaded before that. Whichever
warpgroup is ready takes the tensor cores.

A lane takes weights in the order in which x lies in stages (packed/operand.py), as halves where x is float16.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..epilogue import results, wgmma_sums
from ..epilogue.gates import FIRST, MOST_GATED, gate_multiplier
from ..epilogue.results import residual_adder
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, wgmma
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import opaque_zero
from ..intrinsics.language import cuda, uint32, uint64
from ..packed.layout import ROWS, PackedLayout
from ..packed.operand import lane_order, natural_loader
from ..packed.weights import BELOW, column_weights, fragment_weights, half_weights, serves_halves, untwister
from ..rings.boxed import stage_advancer
from ..schedule.raster import next_work_unit
from .kernel import Frame, Schedule, Weights
from .stream_k import SplitEpilogue
from .tile import CONSUMER_REGISTERS, CONSUMER_WARPS, PRODUCER_REGISTERS, WarpSpecializedTile

HALVES = 3  # the number of x's kind where weights are halves, behind those of KINDS


class Products(NamedTuple):
    """The facts about a kernel's products that its consumers are made with."""

    layout: PackedLayout
    tile: WarpSpecializedTile
    natural: bool  # x may lie in the order of its columns; else all is as it was packed
    halves: bool  # x may be float16; else it is bfloat16
    transposed: bool = False  # sums run over rows of weights: y @ q


class LaneWeights(NamedTuple):
    """Device functions by which a lane gets its sixteen registers of weights, twice from a stage of two."""

    words: int  # that a lane holds
    place: Any  # (warp) -> offset of its weights in a stage
    second: int  # bytes from those to the second sixteen registers' weights
    order: Any  # (lane, warp, plain) -> what ``load`` and ``unpack`` need of them
    load: Any  # (address, lane, order, words)
    unpack: Any  # (words, order, registers, opaque)
    factor: float  # multiplies the sums in the end
    settle: Any  # (sums) -> sums in the order of rows


def multiplier(columns: int, floats: str = "bf16") -> Any:
    """The device function that starts a step's products, and waits for those of the step before."""
    advance = wgmma.sums(columns, floats).advance

    @inlined
    def multiply(total: Any, a: Any, at: Any) -> Any:
        rows = (
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )  # fmt: skip
        return advance(total, rows, uint32(at))

    return multiply


def lane_weights(products: Products, halves: bool) -> LaneWeights:
    """A lane's weights for the products; ``halves``: as float16."""
    layout, tile = products.layout, products.tile
    weights_at, pitch = tile.fragments * tile.x_tile_bytes, tile.box_row(layout)
    after = tile.next_fragment(layout)
    if products.transposed:
        words, order, load, unpack, factor = column_weights(layout, pitch, halves)
        return LaneWeights(
            words,
            inlined(lambda warp: uint32(uint32(weights_at) + uint32(warp >> uint32(2)) * uint32(after))),
            BELOW * pitch, inlined(lambda lane, warp, plain: order(lane, warp)),
            inlined(lambda at, lane, order, words: load(at, order, words)), unpack, factor,
            untwister(tile.columns),
        )  # fmt: skip
    words, load_as_packed, unpack_bfloats, factor = fragment_weights(layout)
    unpack, factor = (half_weights(layout), 1.0) if halves else (unpack_bfloats, factor)
    if products.natural:
        order, load = lane_order(layout), natural_loader(layout)
    else:
        order = inlined(lambda lane, plain: lane)
        load = inlined(lambda at, lane, order, words: load_as_packed(at, lane, words))
    return LaneWeights(
        words, inlined(lambda warp: uint32(uint32(weights_at) + warp * uint32(pitch))), after,
        inlined(lambda lane, warp, plain: order(lane, plain)), load,
        inlined(lambda words, order, a, opaque: unpack(words, a, opaque)), factor,
        inlined(lambda total: total),
    )  # fmt: skip


def accumulator(products: Products, halves: bool) -> Any:
    """The device function for the sums of stages ``first`` … ``last - 1``; ``halves``: of float16.

    It returns the sums, and the ring's next stage with its parity. One fragment is multiplied, the next is
    unpacked meanwhile, the words of a third are being loaded. A stage is released once the products after its
    last ones have been started, for only then are its own complete.
    """
    layout, tile = products.layout, products.tile
    stages, length, x_tile_bytes = tile.stages(layout), tile.stage(layout), tile.x_tile_bytes
    single, after, sums = tile.fragments == 1, stage_advancer(stages), wgmma.sums(tile.columns)
    multiply = multiplier(tile.columns, "f16" if halves else "bf16")
    count, place, second, _, load, unpack, scale, settle = lane_weights(products, halves)
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, wgmma.wait
    zeros, times, factor, scales = sums.zeros, sums.times, np.float32(scale), scale != 1

    @inlined
    def accumulate(
        ring: Any, full: Any, warp: Any, lane: Any, order: Any, stage: Any, phase: Any, first: Any, last: Any,
        opaque: Any,
    ) -> Any:  # fmt: skip
        even, odd, words = (
            cuda.local.array(16, uint32), cuda.local.array(16, uint32), cuda.local.array(count, uint32),
        )  # fmt: skip
        warp_at = place(warp)
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * uint32(length))
        wait(uint32(full + stage * uint32(8)), phase)
        load(uint32(at + warp_at), lane, order, words)
        unpack(words, order, even, opaque)
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
            unpack(words, order, odd, opaque)
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
            unpack(words, order, even, opaque)
        wait_for_products()
        if lane == uint32(0):
            arrive(before)
        if scales:
            total = times(total, factor)
        return settle(total), stage, phase

    return accumulate


def either_accumulator(products: Products) -> Any:
    """The device function for the sums of stages, of either kind of floats where the type allows both."""
    of_bfloats = accumulator(products, False)

    @inlined
    def only_bfloats(
        halves: Any, ring: Any, full: Any, warp: Any, lane: Any, order: Any, stage: Any, phase: Any,
        first: Any, last: Any, opaque: Any,
    ) -> Any:  # fmt: skip
        return of_bfloats(ring, full, warp, lane, order, stage, phase, first, last, opaque)

    if not (products.halves and serves_halves(products.layout)):
        return only_bfloats
    of_halves = accumulator(products, True)

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

    return accumulate


class TileResults(NamedTuple):
    """Device functions for the results of a tile, from its sums."""

    begin: Any  # (list of rows of y, lane, columns): before the products
    add: Any  # (sums, y, place, n, (first, last, stages), residual): sums, and biases still to be added
    write: Any  # (sums, biases, y, place, n, what ``begin`` gave): of a whole tile


def dense_results(tile: WarpSpecializedTile) -> TileResults:
    """The functions for y [m, n] as epilogue/results.py has it, with a residual, or a gate in narrow tiles.

    Only the block with the first stages of a tile adds a residual; each multiplies its sums with a gate.
    """
    ends, load_bias, nothing = thread_sums(tile.columns), results.bias_loader(), results.NOTHING
    write_floats, write16, add_residual = ends.write, ends.write16, residual_adder(tile.columns, True)
    wait_for_predecessor, gates = dependent_launch.wait_for_predecessor, tile.columns <= MOST_GATED
    multiply = gate_multiplier(tile.columns)

    @inlined
    def add(total: Any, y: Any, place: Any, n: Any, parts: Any, residual: Any) -> Any:
        (at, kind), (row, column, limit), (first, last, stages) = residual, place, parts
        low, high = nothing, nothing
        if first == uint32(0) and last == stages:
            low, high = load_bias(y, row, n), load_bias(y, uint32(row + uint32(8)), n)
        if gates and at != uint64(0) and kind >= uint32(FIRST):
            wait_for_predecessor()  # it may have made the gate
            total = multiply(total, at, kind, column, row, limit, n)
        elif at != uint64(0) and first == uint32(0):
            wait_for_predecessor()  # it may have made the residual
            total = add_residual(total, at, kind, column, row, limit, n, low, high)
            low, high = nothing, nothing
        return total, low, high

    @inlined
    def write(total: Any, biases: Any, y: Any, place: Any, n: Any, listed: Any) -> None:
        (at, kind, _, _), (row, column, limit), (low, high) = y, place, biases
        if kind == uint32(0):
            write_floats(total, at, column, row, limit, n, low, high)
        else:
            write16(total, at, column, row, limit, n, low, high, uint32(kind - uint32(1)))

    return TileResults(inlined(lambda rows_of_columns, lane, limit: uint32(0)), add, write)


def listed_results(tile: WarpSpecializedTile) -> TileResults:
    """The functions for rows of float32 that a list names for the columns of a tile."""
    scatter, nothing = wgmma_sums.scatterer(tile.columns), results.NOTHING

    @inlined
    def add(total: Any, y: Any, place: Any, n: Any, parts: Any, residual: Any) -> Any:
        return total, nothing, nothing

    @inlined
    def write(total: Any, biases: Any, y: Any, place: Any, n: Any, rows_of_y: Any) -> None:
        row, column, _ = place
        scatter(total, y, rows_of_y, column, row, n)

    return TileResults(wgmma_sums.holder(tile.columns), add, write)


def packed_blocks(products: Products) -> Weights:
    """The weights of products with packed blocks; their epilogue is a pair: TileResults, SplitEpilogue."""
    layout, tile, wide = products.layout, products.tile, products.tile.wide
    registers = (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if wide else None
    frame = Frame(CONSUMER_WARPS, tile.threads, tile.shared(layout), tile.blocks, registers, lto=wide)
    return Weights(frame, partial(consumer, products))


def consumer(products: Products, schedule: Schedule, epilogue: tuple[TileResults, SplitEpilogue]) -> Any:
    """The device function of the consumer warps.

    ``needs``: the lane; outputs, partial sums and flags; where tiles lie; rows of weights and steps of K; the
    block's rank with what schedule/raster.py says of its work units; the split of the last wave; whether
    x lies in the order of its columns, whether it is float16, and a residual with its kind, or 0.
    """
    accumulate, make_order = either_accumulator(products), lane_weights(products, False).order
    (begin, add, write), (announce, store_partial, finish) = epilogue
    (begin_walk, locate, read_split), behind = schedule.walk, products.tile.stages(products.layout) * 16

    @inlined
    def consume(ring: Any, full: Any, warp: Any, needs: Any) -> None:
        lane, outputs, tile_order, (n, steps), (rank, end, stages_left, whole_tiles) = needs[:5]
        split, plain, halves, residual = needs[5:]
        begin_walk()
        next_whole, y, scratch = rank, outputs[0], uint32(full + uint32(behind))
        stage, phase, opaque = uint32(0), uint32(0), opaque_zero(steps)
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        thread_at = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        split_tiles, split_blocks, _, _, _, whole_tiles = read_split(split, scratch)
        order = make_order(lane, warp, plain)
        announce(outputs[2], (rank, split_blocks, split_tiles))
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, first, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages, blocks, whole_tiles
            )
            row, column, limit, rows_of_columns = locate(tile_order, number, thread_at)
            rows_of_y = begin(rows_of_columns, lane, limit)
            total, stage, phase = accumulate(
                halves, ring, full, warp, lane, order, stage, phase, first, last, opaque
            )
            split_tiles, split_blocks, _, _, _, whole_tiles = read_split(split, scratch)
            place, parts = (row, column, limit), (first, last, stages)
            total, low, high = add(total, y, place, n, parts, residual)
            if first > uint32(0) or last < stages:
                number, position = uint32(number - whole_tiles), (rank, split_blocks, split_tiles)
                store_partial(total, outputs[1], outputs[2], number, first, position, scratch)
            else:
                write(total, (low, high), y, place, n, rows_of_y)
        split_tiles, split_blocks, splits, block_stages, longer_blocks, whole_tiles = read_split(
            split, scratch
        )
        position, shared = (
            (rank, split_blocks, split_tiles),
            (split_tiles, split_blocks, splits, block_stages, longer_blocks),
        )
        finish(outputs, tile_order, thread_at, n, stages, position, shared, whole_tiles, scratch)

    return consume
