"""The warp-specialised kernel for packed weights: maps of the operands, parameters, shared memory, producer
loop, consumer loop, epilogue, stores, in this order.

A block has eight consumer warps and, behind them, one producer warp, or four with wide tiles. It stays on the
card and computes tile after tile (tiles.py):

                         x: `columns` rows, 16 … 256
                       +---------------------------+
    128 rows   warp 0  | 16 rows                   |  warpgroup 0: 64 rows, one wgmma
    of         warp 1  |                           |
    weights    warp 2  |                           |     a thread of lane 4 g + t has, of its warp's 16 rows,
               warp 3  |                           |     rows g and g + 8, and of each 8 columns
               warp 4  |                           |     columns 2 t and 2 t + 1
               warp 5  |                           |  warpgroup 1: the other 64 rows
               warp 6  |                           |
               warp 7  |                           |
                       +---------------------------+
               warp 8     one thread: the copy engine fetches stages
               warps 9, 10, 11, with wide tiles: x_tiles of later steps (tiles.py: late x_tiles)

Weights are A of wgmma (swap_ab), unpacked to bfloat16 or float16 in registers; x is B, in shared memory. The
two sets of a thread's registers take turns, here with two steps of 64 columns, *even* and *odd*, a stage:

    copy engine     stage 0   | stage 1    | stage 2    | stage 3    |  stage 4, once 0 is empty
    load words                even 0  odd 0   even 1  odd 1   even 2  odd 2
    unpack                    even 0     | odd 0      | even 1     | odd 1     | even 2
    tensor cores                         | even 0     | odd 0      | even 1    | odd 1
    released                                                       | stage 0   |

So a warpgroup unpacks while its own products run, and where that takes longer than the products the tensor
cores take those of the other warpgroup.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....base.slots import all_following, rows_of
from ...driver import tensor_maps
from ...intrinsics import hopper, ptx, wgmma
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import KINDS
from ...intrinsics.lane import address, opaque_zero, warp_and_lane
from ...intrinsics.language import cuda, int32, types, uint32, uint64
from ...layouts.floats import sixteen_loader
from ...layouts.layout import FRAGMENT_ROWS, ROWS, STEP, PackedLayout
from ...layouts.operand import lane_order, natural_loader
from ...layouts.pack import packed_weights
from ...layouts.weights import BELOW, column_weights, fragment_weights, half_weights, serves_halves, untwister
from ...layouts.x_tiles import THREAD_COLUMNS, chunk_placer, chunk_swapper
from ..epilogue import results
from ..epilogue.results import (
    FIRST_GATE,
    MAX_GATED_COLUMNS,
    Result,
    gate_multiplier,
    residual_adder,
    thread_sums,
)
from . import tiles
from .frame import Consumers, Frame, Schedule, barrier_initializer, stage_advancer
from .stream_k import INBOX_BARRIER, Outputs, SplitEpilogue
from .tiles import (
    ALL_READY,
    CONSUMER_REGISTERS,
    CONSUMER_THREADS,
    CONSUMER_WARPS,
    LANES,
    MAP_ELEMENT_BYTES,
    PRODUCER_REGISTERS,
    SECTION_STEPS,
    TICKET_ROWS,
    UNIT_FRAGMENTS,
    X_ROW_BYTES,
    LastWave,
    LateXTiles,
    Raster,
    TileOrder,
    TileSplit,
    WarpSpecializedTile,
    Work,
    next_work_unit,
    shared_stages,
)

HALVES = 3  # the number of x's kind where weights are halves, behind those of KINDS

# --- maps of the operands, which a launch passes -------------------------------------------------


@cache
def weights_map(box_row: int) -> Callable[[QuantArray], tuple[Any]]:
    """The function that makes the tensor map of an array's packed weights, in boxes of ``box_row`` bytes a
    fragment row.
    """

    def map_weights(q: QuantArray) -> tuple[Any]:
        w = packed_weights(q).fragments
        count, steps, fragment_bytes = w.shape
        pitch = steps * fragment_bytes
        box = tensor_maps.Box(
            w.data.ptr, count, pitch // MAP_ELEMENT_BYTES, pitch, "uint64", FRAGMENT_ROWS,
            box_row // MAP_ELEMENT_BYTES, False,
        )  # fmt: skip
        return (tensor_maps.map_array(box),)

    return map_weights


@cache
def map_finder(box_row: int) -> Callable[[QuantArray], Any]:
    """The function that finds that map, for ``part`` of driver/recorded.py."""
    make = weights_map(box_row)
    return lambda q: q.prepared(make)[0]


def map_words(x: Any, tile: WarpSpecializedTile) -> tuple[int, ...] | None:
    """The words behind the address in the map of x [rows, K], read as it lies in boxes of a tile's rows; None
    where the driver makes no such map, which it does for all rows or for none.
    """
    rows, k = rows_of(x), x.shape[1]

    def words(rows: int) -> tuple[int, ...]:
        box = tensor_maps.Box(0, rows, k, 2 * k, "bfloat16", tile.columns, STEP)
        return tensor_maps.words_behind_address(box) or ()

    return all_following(rows, words) if words(int(rows)) else None


# --- parameters ---------------------------------------------------------------------------------

TWO_ADDRESSES, FOUR_WORDS, FIVE_WORDS = (
    types.UniTuple(uint64, 2),
    types.UniTuple(uint32, 4),
    types.UniTuple(uint32, 5),
)
RESULT, X, ADDEND = (
    types.Tuple((uint64, uint32, uint64, uint32)), types.Tuple((uint64, uint32, uint32)),
    types.Tuple((uint64, uint32)),
)  # fmt: skip
BEFORE_MAP = (
    TWO_ADDRESSES,
    RESULT,
    TWO_ADDRESSES,
    X,
    FOUR_WORDS,
    FOUR_WORDS,
)  # 112 bytes: with boxes.PARAMETERS a multiple of 64, where maps must begin
X_MAP, MAP_WORDS = 19, tensor_maps.SIZE // 8  # the map's number among the flat parameters; its words
DENSE = *BEFORE_MAP, types.UniTuple(uint64, MAP_WORDS), ADDEND, FIVE_WORDS, FIVE_WORDS


class Sizes(NamedTuple):
    """The sizes of one product, in the order of the parameter."""

    m: Any  # rows of x
    n: Any  # rows of weights: columns of the results
    steps: Any  # of 64 columns
    height: Any  # of x_tiles: rows; 0 where x is read as it lies


class Operands(NamedTuple):
    """The memory that producers fetch from."""

    weights: Any  # address of the map of the packed weights
    x_tiles: Any  # address
    flags: Any  # address, with the counters of late x_tiles behind
    height: Any  # of x_tiles: rows; 0 where x is read as it lies


class Job(NamedTuple):
    """All that a schedule tells the producers and consumers of a block."""

    lane: Any
    tile_order: Any  # the schedule's, for its functions that place a tile
    work: Any  # Work
    n: Any  # rows of weights: columns of the results
    steps: Any  # of 64 columns
    # for producers
    operands: Any  # Operands
    rows: Any  # XRows: where this kernel makes x_tiles
    late: Any  # LateXTiles
    # for consumers
    outputs: Any  # Outputs
    wave: Any  # LastWave, where the host decides it
    natural: Any  # whether x lies in the order of its columns; else in that of x_tiles
    halves: Any  # whether x is float16; else it is bfloat16
    addend: Any  # address and kind of a residual or of a gate's sums; or 0


class Walk(NamedTuple):
    """Device functions by which consumers go from work unit to work unit."""

    begin: Any  # () before the first
    locate: Any  # (order of tiles, number, the thread's row and column in a tile) -> ConsumerPlace
    read_split: Any  # (wave, scratch) -> LastWave; called anew, so no register holds it


@inlined
def begin_at_once() -> None:
    """The beginning of consumers that wait for nothing."""


@inlined
def split_of_host(wave: Any, scratch: Any) -> Any:
    """The LastWave where the host decides it."""
    return wave


def dense(layout: PackedLayout, tile: WarpSpecializedTile, transposed: bool = False) -> Schedule:
    """The schedule of one product; ``transposed``: of y @ q, whose y has 16 bits and is read as it lies.

    Then K stands for the rows of weights, and n for their columns. The host decides how the last wave of
    tiles is split along K.
    """
    start_block = block_starter(layout, tile, True)

    def enclose(run: Any) -> Any:
        def product(
            operands: Any,  # tensor map of the packed weights; x_tiles, 16 bits [steps, height, 64]
            results: Any,  # y [m, n] and a bias, with their kinds: kernels/epilogue/results.py
            exchange: Any,  # partial sums, float32 [slots, a tile], and flags, uint32: stream_k.py
            rows: Any,  # x [m, k], the kind of its floats or HALVES, k
            sizes: Any,  # m, n, steps of K, height of x_tiles; 0 where x is read as it lies
            order: Any,  # Raster
            matrix: Any,  # the map of x, or zeros; producers take its address by X_MAP
            addend: Any,  # a residual or a gate of y's shape, and its kind; or 0: kernels/epilogue/results.py
            late: Any,  # LateXTiles
            split: Any,  # TileSplit, by cost/warp_specialized.py
        ) -> None:
            # It finds no room before blocks of this kernel end, so all of these run.
            hopper.let_successor_start()
            block = start_block()
            cuda.syncthreads()  # the barriers and scratch words are there
            size, (x, kind, k), order = Sizes(*sizes), rows, Raster(*order)
            tile_order = TileOrder(order, size.m)
            # The last block of the grid is the first in the order of work units: tiles.py.
            last = uint32(uint32(cuda.gridDim.x) - 1)
            rank = uint32(last - uint32(cuda.blockIdx.x))
            whole_tiles = uint32(order.tiles - TileSplit(*split).split_tiles)
            wave = LastWave(*split, whole_tiles)  # type: ignore[call-arg]  # mypy: any number of words
            begin, end = shared_stages(rank, uint32(size.steps >> 1), wave)
            work = Work(rank, end, uint32(end - begin), whole_tiles)
            job = Job(
                lane=block.lane, tile_order=tile_order, work=work, n=size.n, steps=size.steps,
                operands=Operands(operands[0], operands[1], exchange[1], size.height),
                rows=XRows(x, kind, size.m, k),
                late=LateXTiles(*late),
                outputs=Outputs(Result(*results), exchange[0], exchange[1]),
                wave=wave,
                natural=size.height == 0,
                halves=kind == HALVES,
                addend=addend,
            )  # fmt: skip
            run(block.ring, block.full, block.warp, job)

        return product

    make_producers = column_producers if transposed else wide_producers if tile.wide else narrow_producers
    produce = make_producers(layout, tile)
    walk = Walk(begin_at_once, tiles.consumer_locator(tile.columns), split_of_host)
    return Schedule(DENSE, enclose, produce, inlined(lambda ring, job: None), walk)


# --- shared memory ------------------------------------------------------------------------------


class Block(NamedTuple):
    """The shared memory of a block, and the place of a thread."""

    ring: Any  # address of the first stage
    full: Any  # address of the first full barrier; the empty ones and the scratch words follow
    warp: Any
    lane: Any


def block_starter(layout: PackedLayout, tile: WarpSpecializedTile, has_inbox: bool) -> Any:
    """The device function that places a block's ring, and makes barriers and scratch words by one thread.

    It returns a Block. Other threads do not wait here.
    """
    start = barrier_initializer(tile.stages(layout), CONSUMER_WARPS)
    barriers_at, scratch = tile.stages(layout) * tile.stage(layout), 16 * tile.stages(layout)

    @inlined
    def start_block() -> Any:
        warp, lane = warp_and_lane()
        warp, lane = hopper.from_first_lane(warp), hopper.pinned(lane)
        # The swizzle takes a row's number from the address, so stages begin at multiples of 1024.
        ring = hopper.from_first_lane(uint32(uint32(ptx.shared_base() + 1023) & 0xFFFFFC00))
        full = uint32(ring + barriers_at)
        if uint32(cuda.threadIdx.x) == 0:
            if has_inbox:
                hopper.init_barrier(uint32(full + (scratch + INBOX_BARRIER)), uint32(1))
            start(full)
            for i in range(2):
                ptx.put4(uint32(full + uint32(scratch + 4 * i)), int32(0))
        return Block(ring, full, warp, lane)

    return start_block


# --- producer loop ------------------------------------------------------------------------------


def x_tile_producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, reorders: bool) -> Any:
    """The device function of the producer, one thread: it keeps the ring full of weights and x_tiles, work
    unit after work unit.

    ``locate``: the device function (tile_order, number of a tile) for the tile's ProducerPlace.
    ``reorders``: whether other warps of this kernel make x_tiles meanwhile (tiles.py: late x_tiles).
    """
    stages, x_tile_bytes, fragments_each = tile.stages(layout), tile.x_tile_bytes, tile.fragments
    request_weights, request_x_tiles = weights_requester(layout, tile), x_tile_requester(layout, tile)
    wait_for_section, after = section_waiter(reorders), stage_advancer(stages)
    stages_per_unit = UNIT_FRAGMENTS // tile.fragments

    @inlined
    def produce(ring: Any, full: Any, job: Any) -> None:
        operands, late, work = job.operands, job.late, job.work
        stages_left, next_whole = work.stages_left, work.rank
        stage, phase, begun, ready = uint32(0), uint32(0), uint32(0), late.ready
        stages_of_tile, blocks = uint32(job.steps >> 1), uint32(cuda.gridDim.x)
        apart = uint64(operands.height) * X_ROW_BYTES  # bytes from an x_tile to that of the next step
        hopper.prefetch_map(operands.weights)
        while stages_left > 0 or next_whole < work.whole_tiles:
            unit = next_work_unit(stages_left, work.end, next_whole, stages_of_tile, blocks, work.whole_tiles)
            i, last, stages_left, next_whole = unit.first, unit.last, unit.stages_left, unit.next_whole
            place = locate(job.tile_order, unit.tile)
            i, last = uint32(i * stages_per_unit), uint32(last * stages_per_unit)
            if unit.tile >= work.whole_tiles:
                ready = late.ready  # the unit may begin within K: its earlier sections were not waited for
            x_tile = (
                operands.x_tiles + uint32(i * fragments_each) * apart + uint64(place.column) * x_tile_bytes
            )
            if begun == 0:
                # The first round: all stages are empty. Weights do not depend on the kernel before, so they
                # are requested while it still runs; x may be its result. Fetched before the wait, x could
                # be what was there before.
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, operands.weights, uint32(i + at), place.fragment_row)
                    at = uint32(at + 1)
                hopper.wait_for_predecessor()
                at = uint32(0)
                while at < ahead:
                    step = uint32(uint32(i + at) * fragments_each)
                    ready = wait_for_section(operands.flags, late, place.sweep, step, ready)
                    request_x_tiles(ring, full, at, x_tile, apart)
                    x_tile, at = x_tile + fragments_each * apart, uint32(at + 1)
                i, stage = uint32(i + ahead), ahead
                if ahead == stages:
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                # Consumers may still read the stage: copies would overwrite it under their products.
                hopper.wait(uint32(full + 8 * stages + stage * 8), uint32(phase ^ 1))
                request_weights(ring, full, stage, operands.weights, i, place.fragment_row)
                step = uint32(i * fragments_each)
                ready = wait_for_section(operands.flags, late, place.sweep, step, ready)
                request_x_tiles(ring, full, stage, x_tile, apart)
                x_tile, i = x_tile + fragments_each * apart, uint32(i + 1)
                stage, phase = after(stage, phase)
        if begun == 0:
            # A block without work waits, too: whoever waits for the end of this kernel relies on the end of
            # the one before.
            hopper.wait_for_predecessor()

    return produce


def x_row_producer(
    layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, transposed: bool = False
) -> Any:
    """The device function of the producer where x of 16 bits is read as it lies, without a kernel before.

    It is that of x_tile_producer(), where the reasons for the order of its waits stand, with boxes of 64
    columns of a tile's rows in place of x_tiles. The map of x is a parameter of the kernel. Rows beyond M and
    columns beyond K come as zeros. Consumers take weights in the same order.
    """
    stages, columns, after = tile.stages(layout), tile.columns, stage_advancer(tile.stages(layout))
    request_weights, request_x_rows = (
        weights_requester(layout, tile, transposed),
        x_row_requester(layout, tile),
    )
    stages_per_unit = UNIT_FRAGMENTS // tile.fragments

    @inlined
    def produce(ring: Any, full: Any, job: Any, x_map: Any) -> None:
        operands, work = job.operands, job.work
        stages_left, next_whole = work.stages_left, work.rank
        stage, phase, begun = uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(job.steps >> 1), uint32(cuda.gridDim.x)
        hopper.prefetch_map(operands.weights)
        hopper.prefetch_map(x_map)
        while stages_left > 0 or next_whole < work.whole_tiles:  # as in x_tile_producer()
            unit = next_work_unit(stages_left, work.end, next_whole, stages_of_tile, blocks, work.whole_tiles)
            i, last, stages_left, next_whole = unit.first, unit.last, unit.stages_left, unit.next_whole
            place = locate(job.tile_order, unit.tile)
            x_row = uint32(place.column * columns)
            i, last = uint32(i * stages_per_unit), uint32(last * stages_per_unit)
            if begun == 0:
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, operands.weights, uint32(i + at), place.fragment_row)
                    at = uint32(at + 1)
                hopper.wait_for_predecessor()  # it may have made x
                at = uint32(0)
                while at < ahead:
                    request_x_rows(ring, full, at, x_map, uint32(i + at), x_row)
                    at = uint32(at + 1)
                i, stage = uint32(i + ahead), ahead
                if ahead == stages:
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                hopper.wait(uint32(full + 8 * stages + stage * 8), uint32(phase ^ 1))
                request_weights(ring, full, stage, operands.weights, i, place.fragment_row)
                request_x_rows(ring, full, stage, x_map, i, x_row)
                stage, phase = after(stage, phase)
                i = uint32(i + 1)
        if begun == 0:
            hopper.wait_for_predecessor()

    return produce


def weights_requester(layout: PackedLayout, tile: WarpSpecializedTile, transposed: bool = False) -> Any:
    """The device function that requests the weights of a stage, and announces the bytes of all of it.

    ``transposed``: stages follow each other down the rows of weights, and tiles along their columns.
    """
    length, size, count = tile.stage(layout), tile.size(layout), tile.boxes(layout)
    box_row, wide = tile.box_row(layout), tile.box_row(layout) // MAP_ELEMENT_BYTES
    weights_at = tile.fragments * tile.x_tile_bytes

    @inlined
    def request_weights(ring: Any, full: Any, stage: Any, weights: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * 8), uint32(ring + stage * length)
        # The one arrival that `full` waits for: its phase ends when these bytes, of weights and x, are there.
        hopper.expect(done, uint32(size))
        if transposed:
            i, row = uint32(row // FRAGMENT_ROWS), uint32(i * FRAGMENT_ROWS)
        for box in range(count):
            column = uint32(uint32(uint32(i * count) + uint32(box)) * wide)
            hopper.fetch(
                uint32(to + uint32(weights_at + box * FRAGMENT_ROWS * box_row)), weights, column, row, done
            )

    return request_weights


def x_tile_requester(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function that requests a stage's x_tiles, contiguous pieces of memory."""
    length, x_tile_bytes, fragments_each = tile.stage(layout), tile.x_tile_bytes, tile.fragments

    @inlined
    def request_x_tiles(ring: Any, full: Any, stage: Any, source: Any, apart: Any) -> None:
        done, to = uint32(full + stage * 8), uint32(ring + stage * length)
        for fragment in range(fragments_each):
            at, x_tile = uint32(to + uint32(fragment * x_tile_bytes)), source + uint64(fragment) * apart
            hopper.fetch_line(at, x_tile, uint32(x_tile_bytes), done)

    return request_x_tiles


def x_row_requester(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function that requests a stage's boxes of x."""
    length, x_tile_bytes, fragments_each = tile.stage(layout), tile.x_tile_bytes, tile.fragments

    @inlined
    def request_x_rows(ring: Any, full: Any, stage: Any, x_map: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * 8), uint32(ring + stage * length)
        for fragment in range(fragments_each):
            step = uint32(uint32(i * fragments_each) + uint32(fragment))
            hopper.fetch(uint32(to + uint32(fragment * x_tile_bytes)), x_map, uint32(step * STEP), row, done)

    return request_x_rows


def narrow_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warp beside the consumers: one thread fetches x_tiles, or x as it lies."""
    locate = tiles.locate_for_producer
    produce_x_tiles = x_tile_producer(layout, tile, locate, reorders=False)
    produce_rows = x_row_producer(layout, tile, locate)
    map_of_x = hopper.parameter_map(X_MAP)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, job: Any) -> None:
        x_map = map_of_x()
        if uint32(cuda.threadIdx.x) == CONSUMER_THREADS:
            if job.operands.height != 0:
                produce_x_tiles(ring, full, job)
            else:
                produce_rows(ring, full, job, x_map)

    return produce


def column_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warp beside the consumers, for y @ q."""
    produce_rows = x_row_producer(layout, tile, tiles.locate_for_producer, transposed=True)
    map_of_x = hopper.parameter_map(X_MAP)

    @inlined
    def produce(ring: Any, full: Any, warp: Any, job: Any) -> None:
        if uint32(cuda.threadIdx.x) == CONSUMER_THREADS:
            produce_rows(ring, full, job, map_of_x())

    return produce


def wide_producers(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warpgroup beside the consumers.

    One warp fetches, the others make x_tiles. A whole warpgroup is there in any case, for only whole ones
    give up registers (frame.py).
    """
    produce_x_tiles = x_tile_producer(layout, tile, tiles.locate_for_producer, reorders=True)
    columns, reorder_rows = tile.columns, reorderer()

    @inlined
    def produce(ring: Any, full: Any, warp: Any, job: Any) -> None:
        late = job.late
        if uint32(cuda.threadIdx.x) == CONSUMER_THREADS:
            produce_x_tiles(ring, full, job)
        elif warp > CONSUMER_WARPS and late.tickets > 0:
            hopper.wait_for_predecessor()  # it may have made x
            x_tiles, flags = job.operands.x_tiles, job.operands.flags
            rows_per_sweep = uint32(job.tile_order.raster.width * columns)
            reorder_rows(
                job.rows, x_tiles, flags, late, job.steps, job.operands.height,
                rows_per_sweep, job.lane,
            )  # fmt: skip

    return produce


# --- warps that make late x_tiles: tiles.py --------------------------------------------------------


class XRows(NamedTuple):
    """The activations that x_tiles are made of."""

    x: Any  # address
    kind: Any  # of the floats, by its place in KINDS; or HALVES
    m: Any  # rows
    k: Any  # columns


@cache
def section_waiter(reorders: bool) -> Any:
    """The device function by which the producer waits for the section of a stage; it returns how many are
    ready.

    ``reorders``: whether warps of this kernel make x_tiles; otherwise all are ready.
    """
    if not reorders:
        return inlined(lambda flags, late, sweep, step, ready_sections: ready_sections)

    @inlined
    def wait_for_section(flags: Any, late: Any, sweep: Any, step: Any, ready_sections: Any) -> Any:
        if ready_sections != ALL_READY:
            section = uint32(uint32(sweep * late.sections) + uint32(step // SECTION_STEPS))
            if section >= ready_sections:
                # Only running warps hold tickets, and they wait for nothing between taking one and counting
                # it, so this wait ends even where some blocks of the grid were not started.
                place = uint32(uint32(late.counters + 1) + section)
                hopper.wait_for_sum(flags + uint64(place) * 4, late.section_tickets)
                # Threads wrote the x_tiles, the copy engine reads them through another proxy: without a
                # fence on both sides it may read what was there before.
                hopper.publish_to_copy_engine()
                ready_sections = uint32(section + 1)
        return ready_sections

    return wait_for_section


@cache
def reorderer() -> Any:
    """The device function of warps that make x_tiles until no ticket is left."""
    order_floats, order_halves, order_bfloats = (row_pair_reorderer(kind) for kind in KINDS)
    assert SECTION_STEPS * STEP == LANES * THREAD_COLUMNS, "a row of a section is one piece for each lane"

    @inlined
    def reorder_rows(
        rows: Any, x_tiles: Any, flags: Any, late: Any, steps: Any, height: Any, rows_per_sweep: Any,
        lane: Any,
    ) -> None:  # fmt: skip
        ticket = uint32(0)
        while ticket < late.tickets:
            if lane == 0:
                ticket = hopper.take_ticket(flags + uint64(late.counters) * 4)
            ticket = hopper.from_first_lane(ticket)
            if ticket < late.tickets:
                which = uint32(ticket // late.section_tickets)
                section = uint32(late.ready + which)
                sweep = uint32(section // late.sections)
                along = uint32(section - uint32(sweep * late.sections))
                row = uint32(uint32(ticket - uint32(which * late.section_tickets)) * TICKET_ROWS)
                row = uint32(row + uint32(sweep * rows_per_sweep))
                sixteen = uint32(uint32(along * LANES) + lane)
                end = rows.m if sixteen < uint32(steps * 4) else 0
                for i in range(0, TICKET_ROWS, 2):
                    at = uint32(row + uint32(i))
                    if rows.kind == 0:
                        order_floats(rows, x_tiles, sixteen, height, at, end)
                    elif rows.kind == 1:
                        order_halves(rows, x_tiles, sixteen, height, at, end)
                    else:
                        order_bfloats(rows, x_tiles, sixteen, height, at, end)
                # Each lane's writes, before the first lane counts the ticket for all of them.
                hopper.publish_to_copy_engine()
                hopper.sync_warp()
                if lane == 0:
                    counter = uint32(uint32(late.counters + 1) + section)
                    hopper.add_release(flags + uint64(counter) * 4, uint32(1))

    return reorder_rows


@cache
def row_pair_reorderer(kind: str) -> Any:
    """The device function for 16 columns of two neighbouring rows, both in flight at one time.

    ``end``: the first row that is not stored. All lanes of a warp take part.
    """
    load, pair, place, size = sixteen_loader(kind), chunk_swapper(), chunk_placer(), KINDS[kind]

    @inlined
    def reorder_pair(rows: Any, x_tiles: Any, sixteen: Any, height: Any, row: Any, end: Any) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column, last = uint32(sixteen * THREAD_COLUMNS), uint32(rows.m - 1)
        there, after = min(column, uint32(rows.k - THREAD_COLUMNS)), uint32(row + 1)
        load(address(rows.x, min(row, last), rows.k, there, size), a, b)
        load(address(rows.x, min(after, last), rows.k, there, size), c, d)
        if column >= rows.k:
            for t in range(4):
                a[t] = b[t] = c[t] = d[t] = uint32(0)
        pair(sixteen, a, b)
        pair(sixteen, c, d)
        if row < end:
            place(x_tiles, sixteen, height, row, a, b)
        if after < end:
            place(x_tiles, sixteen, height, after, c, d)

    return reorder_pair


# --- consumer loop ------------------------------------------------------------------------------


class Products(NamedTuple):
    """The facts about a kernel's products that its consumers are made with."""

    layout: PackedLayout
    tile: WarpSpecializedTile
    natural: bool  # x may lie in the order of its columns; else all is as it was packed
    halves: bool  # x may be float16; else it is bfloat16
    transposed: bool = False  # sums run over rows of weights: y @ q


def packed_blocks(products: Products) -> Consumers:
    """The consumers of packed blocks; their epilogue is a pair: TileResults, SplitEpilogue."""
    layout, tile, wide = products.layout, products.tile, products.tile.wide
    registers = (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if wide else None
    frame = Frame(CONSUMER_WARPS, tile.threads, tile.shared(layout), tile.blocks, registers, lto=wide)
    return Consumers(frame, partial(consumer_loop, products))


def consumer_loop(products: Products, schedule: Schedule, epilogue: tuple[TileResults, SplitEpilogue]) -> Any:
    """The device function of the consumer warps: work unit after work unit, then slices of split tiles."""
    accumulate, make_order = either_accumulator(products), lane_weights(products, False).order
    of_tile, of_split = epilogue
    begin, add, write = of_tile.begin, of_tile.add, of_tile.write
    announce, store_partial, finish = of_split.announce, of_split.store_partial, of_split.finish
    begin_walk, locate, read_split = schedule.walk.begin, schedule.walk.locate, schedule.walk.read_split
    behind = products.tile.stages(products.layout) * 16

    @inlined
    def consume(ring: Any, full: Any, warp: Any, job: Any) -> None:
        begin_walk()
        lane, outputs, n, work = job.lane, job.outputs, job.n, job.work
        next_whole, stages_left, scratch = work.rank, work.stages_left, uint32(full + behind)
        stage, phase, opaque = uint32(0), uint32(0), opaque_zero(job.steps)
        stages, blocks = uint32(job.steps >> 1), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> 2), uint32(lane & 3)
        thread_at = uint32(warp * ROWS + g), uint32(t << 1)
        wave = read_split(job.wave, scratch)
        place_in_ring = RingPlace(ring, full, warp, lane, make_order(lane, warp, job.natural), opaque)
        announce(outputs.flags, work.rank, wave)
        whole_tiles = wave.whole_tiles
        while stages_left > 0 or next_whole < whole_tiles:
            unit = next_work_unit(stages_left, work.end, next_whole, stages, blocks, whole_tiles)
            first, last, stages_left, next_whole = unit.first, unit.last, unit.stages_left, unit.next_whole
            place = locate(job.tile_order, unit.tile, thread_at)
            # Before the products: the list of a tile's rows has arrived when they are done.
            rows_of_y = begin(place.rows_of_columns, lane, place.limit)
            total, stage, phase = accumulate(job.halves, place_in_ring, stage, phase, first, last)
            # Read anew, so that no register holds it over the products: the sums leave none.
            wave_anew = read_split(job.wave, scratch)
            whole_tiles = wave_anew.whole_tiles
            total, low, high = add(total, outputs.y, place, n, first, last, stages, job.addend)
            if first > 0 or last < stages:
                number = uint32(unit.tile - whole_tiles)
                store_partial(total, outputs, number, first, work.rank, wave_anew, scratch)
            else:
                write(total, (low, high), outputs.y, place, n, rows_of_y)
        wave = read_split(job.wave, scratch)
        finish(outputs, job.tile_order, thread_at, n, stages, work.rank, wave, scratch)

    return consume


class RingPlace(NamedTuple):
    """A consumer lane and the ring that it reads."""

    ring: Any  # address of the first stage
    full: Any  # address of the first full barrier
    warp: Any
    lane: Any
    order: Any  # of LaneWeights
    opaque: Any  # a zero that the assembler does not know, for LaneWeights.unpack


def either_accumulator(products: Products) -> Any:
    """The device function for the sums of stages, of either kind of floats where the type allows both."""
    of_bfloats = accumulator(products, False)
    if not (products.halves and serves_halves(products.layout)):
        return inlined(
            lambda halves, at, stage, phase, first, last: of_bfloats(at, stage, phase, first, last)
        )
    of_halves = accumulator(products, True)

    @inlined
    def accumulate(halves: Any, at: Any, stage: Any, phase: Any, first: Any, last: Any) -> Any:
        if halves:
            total, stage, phase = of_halves(at, stage, phase, first, last)
        else:
            total, stage, phase = of_bfloats(at, stage, phase, first, last)
        return total, stage, phase

    return accumulate


def accumulator(products: Products, halves: bool) -> Any:
    """The device function for the sums of stages ``first`` … ``last - 1``; ``halves``: of float16.

    It returns the sums, and the ring's next stage with its phase. A round multiplies the weights of ``even``,
    then those of ``odd``: the two steps of a stage, or of two stages where a stage has one (``single``).
    """
    layout, tile = products.layout, products.tile
    stages, length, x_tile_bytes = tile.stages(layout), tile.stage(layout), tile.x_tile_bytes
    single, after, sums = tile.fragments == 1, stage_advancer(stages), wgmma.sums(tile.columns)
    multiply = multiplier(tile.columns, "f16" if halves else "bf16")
    weights = lane_weights(products, halves)
    count, second, place, load, unpack = (
        weights.words, weights.second, weights.place, weights.load, weights.unpack
    )  # fmt: skip
    settle = weights.settle
    zeros, times, factor, scales = sums.zeros, sums.times, np.float32(weights.factor), weights.factor != 1

    @inlined
    def accumulate(place_in_ring: Any, stage: Any, phase: Any, first: Any, last: Any) -> Any:
        ring, full, lane = place_in_ring.ring, place_in_ring.full, place_in_ring.lane
        order, opaque = place_in_ring.order, place_in_ring.opaque
        even, odd, words = (
            cuda.local.array(16, uint32), cuda.local.array(16, uint32), cuda.local.array(count, uint32),
        )  # fmt: skip
        warp_at = place(place_in_ring.warp)
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * length)
        hopper.wait(uint32(full + stage * 8), phase)
        load(uint32(at + warp_at), lane, order, words)
        unpack(words, order, even, opaque)
        while i < last:
            here, empty = at, uint32(full + 8 * stages + stage * 8)
            # The words of `odd` are being loaded while the products of `even` are started.
            if single:
                stage, phase = after(stage, phase)
                at = uint32(ring + stage * length)
                hopper.wait(uint32(full + stage * 8), phase)
                load(uint32(at + warp_at), lane, order, words)
            else:
                load(uint32(at + warp_at + second), lane, order, words)
            total = multiply(total, even, here)
            # `multiply` starts products and waits for those before. Only now the products of the stage
            # before are complete, which read its x from shared memory: released earlier, the copy engine
            # would overwrite x under them.
            if before != 0 and lane == 0:
                hopper.arrive(before)
            unpack(words, order, odd, opaque)  # while the tensor cores multiply `even`
            here, before = at if single else uint32(at + x_tile_bytes), empty
            if single:
                empty = uint32(full + 8 * stages + stage * 8)
            stage, phase = after(stage, phase)
            i, at = uint32(i + 1), uint32(ring + stage * length)
            if i < last:
                hopper.wait(uint32(full + stage * 8), phase)
            load(uint32(at + warp_at), lane, order, words)  # after the last stage: any words
            total = multiply(total, odd, here)
            if single and lane == 0:
                hopper.arrive(before)
            before = empty
            unpack(words, order, even, opaque)
        wgmma.wait()
        if lane == 0:
            hopper.arrive(before)
        if scales:
            total = times(total, factor)
        return settle(total), stage, phase

    return accumulate


def multiplier(columns: int, floats: str) -> Any:
    """The device function that starts a step's products, and waits for those of the step before."""
    advance = wgmma.sums(columns, floats).advance

    @inlined
    def multiply(total: Any, a: Any, at: Any) -> Any:
        rows = (
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )  # fmt: skip
        return advance(total, rows, at)

    return multiply


class LaneWeights(NamedTuple):
    """Device functions by which a lane gets its sixteen registers of weights, twice from a stage of two."""

    words: int  # that a lane holds
    place: Any  # (warp) -> offset of its weights in a stage
    second: int  # bytes from those to the second sixteen registers' weights
    order: Any  # (lane, warp, natural) -> what ``load`` and ``unpack`` need of them
    load: Any  # (address, lane, order, words)
    unpack: Any  # (words, order, registers, opaque)
    factor: float  # multiplies the sums in the end
    settle: Any  # (sums) -> sums in the order of rows


def lane_weights(products: Products, halves: bool) -> LaneWeights:
    """A lane's weights for the products, in the order in which x lies in stages; ``halves``: as float16."""
    layout, tile = products.layout, products.tile
    weights_at, pitch = tile.fragments * tile.x_tile_bytes, tile.box_row(layout)
    after = tile.next_fragment(layout)
    if products.transposed:
        of_columns = column_weights(layout, pitch, halves)
        order, load = of_columns.order, of_columns.load
        return LaneWeights(
            of_columns.words,
            inlined(lambda warp: uint32(weights_at + uint32(warp >> 2) * after)),
            BELOW * pitch, inlined(lambda lane, warp, natural: order(lane, warp)),
            inlined(lambda at, lane, order, words: load(at, order, words)), of_columns.unpack,
            of_columns.factor, untwister(tile.columns),
        )  # fmt: skip
    of_fragment = fragment_weights(layout)
    load_as_packed = of_fragment.load
    unpack, factor = (
        (half_weights(layout), 1.0) if halves else (of_fragment.unpack, of_fragment.factor)
    )  # fmt: skip
    if products.natural:
        order, load = lane_order(layout), natural_loader(layout)
    else:
        order = inlined(lambda lane, natural: lane)
        load = inlined(lambda at, lane, order, words: load_as_packed(at, lane, words))
    return LaneWeights(
        of_fragment.words, inlined(lambda warp: uint32(weights_at + warp * pitch)), after,
        inlined(lambda lane, warp, natural: order(lane, natural)), load,
        inlined(lambda words, order, a, opaque: unpack(words, a, opaque)), factor,
        inlined(lambda total: total),
    )  # fmt: skip


# --- epilogue and stores -------------------------------------------------------------------------


class TileResults(NamedTuple):
    """Device functions for the results of a tile, from its sums."""

    begin: Any  # (list of rows of y, lane, columns): before the products
    # (sums, y, place, n, first and last stage, stages of a tile, addend): sums, and biases still to be added
    add: Any
    write: Any  # (sums, biases, y, place, n, what ``begin`` gave): of a whole tile


def dense_results(tile: WarpSpecializedTile) -> TileResults:
    """The functions for y [m, n] as epilogue/results.py has it, with a residual, or a gate in narrow tiles.

    Only the block with the first stages of a tile adds a residual; each multiplies its sums with a gate.
    """
    ends, load_bias, nothing = thread_sums(tile.columns), results.bias_loader(), results.NOTHING
    write_floats, write16, add_residual = ends.write, ends.write16, residual_adder(tile.columns, True)
    gates = tile.columns <= MAX_GATED_COLUMNS
    multiply = gate_multiplier(tile.columns)

    @inlined
    def add(
        total: Any, y: Any, place: Any, n: Any, first: Any, last: Any, stages: Any, addend: Any
    ) -> Any:  # fmt: skip
        (at, kind), row, column = addend, place.row, place.column
        low, high = nothing, nothing
        if first == 0 and last == stages:
            low, high = load_bias(y, row, n), load_bias(y, uint32(row + 8), n)
        # Consumers have not waited for the kernel before: the producer has, on behalf of x alone.
        if gates and at != 0 and kind >= FIRST_GATE:
            hopper.wait_for_predecessor()  # it may have made the gate
            total = multiply(total, at, kind, column, row, place.limit, n)
        elif at != 0 and first == 0:
            hopper.wait_for_predecessor()  # it may have made the residual
            total = add_residual(total, at, kind, column, row, place.limit, n, low, high)
            low, high = nothing, nothing
        return total, low, high

    @inlined
    def write(total: Any, biases: Any, y: Any, place: Any, n: Any, rows_of_y: Any) -> None:
        row, column, (low, high) = place.row, place.column, biases
        if y.kind == 0:
            write_floats(total, y.at, column, row, place.limit, n, low, high)
        else:
            write16(total, y.at, column, row, place.limit, n, low, high, uint32(y.kind - 1))

    return TileResults(inlined(lambda rows_of_columns, lane, limit: uint32(0)), add, write)
