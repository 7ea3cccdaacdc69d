"""The kernel for 8-bit codes with many rows of x: parameters, the ring and its producers, the tiles of a
block, consumers; epilogue.py goes on from their sums.

    dense      blocks stay on the card and take tile after tile of one product
    split_k    a block makes one part of the steps of one tile; the blocks of a tile are a cluster
    experts    blocks stay and take the tiles of all experts from a plan (layouts/groups.py)

A tile of 256 × 128 outputs, and who computes them:

                           128 rows of w
                         +---------------+
    256 rows   warp 0    | 16 rows       |  warpgroup 0: 64 rows a wgmma, first rows 0 … 63, then 64 … 127
    of x       warp 1    |               |
               warp 2    |               |     a thread of lane 4 g + t has, of its warp's 16 rows, rows g
               warp 3    |               |     and g + 8, and of each 8 columns columns 2 t and 2 t + 1
               warps 0 … 3, second half  |
               warps 4 … 7, two halves   |  warpgroup 1: rows 128 … 255
                         +---------------+
               warp 8      one thread: the copy engine fetches codes of w
               warp 9      one thread: it fetches codes and scales of x

Two producer threads in different warps fill the ring, one with codes of w, one with those of x, for each of
their steps takes some hundred clocks: they wait until a stage is empty, announce its bytes and start its
boxes. Consumer warps wait until it is full, and arrive at its other barrier when they have multiplied it. The
raster of tiles is that of mma_tiles.py, so that blocks that run at the same time share rows of both
operands in the L2.

The rows of an expert's tile are a slot of its uses, the columns a part of its weights; its tiles are taken in
the order of one product. Rows of x lie in the plan's order (operands.py), or in place where the uses
are in order. A box of weights that reaches over an expert's end brings rows of the next expert, for outputs
that nobody writes. In the table of scales each expert begins at a multiple of 128 columns, for boxes of
scales must begin at a multiple of 16 bytes, wherever the expert's rows do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.hopper import BOX_BYTES, BOX_ROWS
from ...intrinsics.lane import warp_and_lane
from ...intrinsics.language import cuda, int32, types, uint32, uint64
from ...intrinsics.wgmma import LOW, STEP, TURNS, float_products, unpromoted_products
from ...layouts.groups import HEAD
from ..hopper.frame import Frame, Schedule, barrier_initializer, stage_advancer
from .epilogue import integer_epilogue
from .tiles import KILO, RASTER_HEIGHT, BoxTile, SharedLayout, Variant

# --- parameters and the job of a block ------------------------------------------------------------
#
# A kernel takes three tuples of words:
#
#     operands   addresses and tensor maps
#     sizes      integers of the schedule
#     results    words of the epilogue


class CodeMaps(NamedTuple):
    """The maps that producers fetch by."""

    x: Any  # of codes of x; likewise w
    w: Any
    x_scales: Any  # of floats; or 0
    w_scales: Any  # where each row of w has its own; or 0
    span: Any  # steps that share a scale of x


class TileWork(NamedTuple):
    """The tiles of a block, and the steps of each."""

    number: Any  # of its first tile
    stride: Any  # to the next
    tiles: Any  # Tiles or ExpertTiles
    first: Any  # step
    last: Any  # the step after its last


class CodeWords(NamedTuple):
    """The words of a kernel that do not hang on its schedule."""

    maps: Any  # CodeMaps
    terms: Any  # of consumers: FloatTerms, RowTerms; or as of small_m.py
    y: Any  # outputs: an address, or that of a map
    m: Any  # rows of y
    n: Any  # columns of y
    steps: Any  # along K


class CodeJob(NamedTuple):
    """All that a schedule tells the producers and consumers of a block."""

    words: Any  # CodeWords
    work: Any  # TileWork; or SmallMWork of small_m.py
    finals: Any  # what the epilogue needs beside sums


class CodeConsumers(NamedTuple):
    """The consumer warps for 8-bit codes, and the words that their schedules read."""

    frame: Frame
    consumer: Callable[..., Any]  # as of kernels/hopper/frame.py: Consumers
    operands: int  # words of the first parameter; likewise of the second
    sizes: int
    read: Any  # (operands, sizes) -> CodeWords


class CodeWalk(NamedTuple):
    """Device functions by which consumers go from tile to tile."""

    count: Any  # (tiles) -> their number
    locate: Any  # (number, tiles) -> a tile's first row, first column, and column of scales of w


@inlined
def whole(work: Any) -> Any:
    """All of a block's work."""
    return work


@inlined
def leave_at_once(finals: Any) -> None:
    """The end of producers' warps that wait for nothing."""


def two_producers(
    consumers: CodeConsumers, produce_w: Any, produce_x: Any, aim: Any = whole, leave: Any = leave_at_once
) -> Any:
    """The device function of the producers' warps, behind those of consumers.

    ``produce_w``, ``produce_x``: the device functions (ring, full, codes, scales, part, span) of one thread.
    ``aim``: that for the part of the work that they need. ``leave``: that for the end of these warps.
    """
    first = 32 * consumers.frame.consumers

    @inlined
    def produce(ring: Any, full: Any, warp: Any, job: Any) -> None:
        maps = job.words.maps
        part, thread = aim(job.work), uint32(cuda.threadIdx.x)
        if thread == first:
            produce_w(ring, full, maps.w, maps.w_scales, part, maps.span)
        if thread == first + 32:
            produce_x(ring, full, maps.x, maps.x_scales, part, maps.span)
        leave(job.finals)

    return produce


def tuples(operands: int, sizes: int, results: int) -> tuple[Any, ...]:
    """The types of a kernel's parameters, by the number of words in each."""
    return types.UniTuple(uint64, operands), types.UniTuple(uint32, sizes), types.UniTuple(uint64, results)


def encloser(open_block: Any, read: Any) -> Callable[[Any], Any]:
    """The function for a kernel whose blocks all have work.

    ``open_block``: the device function (operands, sizes) for the ring, its full barriers and facts of the
    block. ``read``: that from the three tuples and these facts to a CodeJob.
    """

    def enclose(run: Any) -> Any:
        def product(operands: Any, sizes: Any, results: Any) -> None:
            ring, full, facts = open_block(operands, sizes)
            warp = hopper.from_first_lane(uint32(uint32(cuda.threadIdx.x) >> 5))
            run(ring, full, warp, read(operands, sizes, results, facts))

        return product

    return enclose


# --- the ring and its producers -----------------------------------------------------------------


def ring_placer(barriers_offset: int) -> Any:
    """The device function for the beginning of the ring in shared memory, and its first full barrier."""

    @inlined
    def place_ring() -> Any:
        ring = uint32(uint32(ptx.shared_base() + (KILO - 1)) & 0xFFFFFC00)
        return ring, uint32(ring + barriers_offset)

    return place_ring


def raster_locator(tile: BoxTile, raster_height: int) -> Any:
    """The device function for a tile's first row and column, ``raster_height`` tiles down at a time.

    Tiles 2 i and 2 i + 1 of pairs are neighbours in a row, of which there are an even number across.
    """
    rows, columns, pair = tile.rows, tile.columns, tile.pair

    @inlined
    def one(number: Any, down: Any, across: Any) -> Any:
        raster_tiles = uint32(raster_height * across)
        first = uint32(uint32(number // raster_tiles) * raster_height)
        height, rest = min(uint32(down - first), uint32(raster_height)), uint32(number % raster_tiles)
        row = uint32(first + uint32(rest % height))
        return uint32(row * rows), uint32(uint32(rest // height) * columns)

    @inlined
    def of_pair(number: Any, down: Any, across: Any) -> Any:
        row, column = one(uint32(number >> uint32(1)), down, uint32(across >> uint32(1)))
        return row, uint32(uint32(column << uint32(1)) + (number & uint32(1)) * uint32(columns))

    return of_pair if pair else one


def box_fetcher(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that starts the boxes of one operand's stage, whose barrier is ``done``.

    That of w announces the bytes of both operands. ``scales``: a map, of x [groups, M], of w [steps, N];
    ``at``: the operand's first row; ``scale_column``: its place in a row of scales; ``group``: the row of
    scales of the step.
    """
    length, size, first = (
        layout.tile.stage,
        layout.tile.stage + layout.scale_bytes,
        layout.tile.rows * STEP * is_w,
    )
    scaled = layout.w_scales if is_w else layout.x_scales
    scales_at, scale_bytes = layout.scales + 4 * layout.tile.rows * layout.x_scales * is_w, layout.scale_bytes
    halves_x, box_rows = layout.tile.pair and not is_w, layout.tile.box_rows

    @inlined
    def start_boxes(
        ring: Any, done: Any, stage: Any, codes: Any, scales: Any, at: Any, scale_column: Any,
        step: Any, group: Any,
    ) -> None:  # fmt: skip
        if is_w:
            hopper.expect(done, uint32(size))
        to = uint32(ring + stage * length + first)
        if halves_x:  # each block of a pair fetches its half of the rows of x for both
            first_row, both = uint32(hopper.rank_in_cluster() * uint32(box_rows)), uint32(3)
            to = uint32(to + first_row * uint32(STEP))
            hopper.fetch_for_all(to, codes, uint32(step * STEP), uint32(at + first_row), done, both)
        else:
            hopper.fetch(to, codes, uint32(step * STEP), at, done)
        if scaled:
            hopper.fetch(uint32(ring + scales_at + stage * scale_bytes), scales, scale_column, group, done)

    return start_boxes


def scale_row_advancer(is_w: bool) -> Any:
    """The device functions for the row of scales of the first step, and of the next step."""

    @inlined
    def begin(step: Any, span: Any) -> Any:
        if is_w:
            return step, uint32(0)
        return uint32(step // span), uint32(span - uint32(step % span))

    @inlined
    def follow(group: Any, left: Any, span: Any) -> Any:
        if is_w:
            return uint32(group + 1), left
        left = uint32(left - 1)
        return (uint32(group + 1), span) if left == 0 else (group, left)

    return begin, follow


def step_producer(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that starts an operand's boxes of steps ``first`` … ``last``, stage by stage.

    Returns the stage after the last one, and its parity.
    """
    stages, after = layout.tile.stages, stage_advancer(layout.tile.stages)
    start_boxes, (first_group, next_group) = box_fetcher(layout, is_w), scale_row_advancer(is_w)

    @inlined
    def produce(
        ring: Any, full: Any, stage: Any, phase: Any, codes: Any, scales: Any, at: Any, scale_column: Any,
        first: Any, last: Any, span: Any,
    ) -> Any:  # fmt: skip
        step, (group, left) = first, first_group(first, span)
        while step < last:
            done = uint32(full + stage * 8)
            # Consumers may still read the stage: a box would overwrite it under their products. It does not
            # matter which producer comes first: the phase of `done` cannot end before that of w has announced
            # the bytes of both operands, and all are there.
            hopper.wait(uint32(done + 8 * stages), uint32(phase ^ 1))
            start_boxes(ring, done, stage, codes, scales, at, scale_column, step, group)
            stage, phase = after(stage, phase)
            step, (group, left) = uint32(step + 1), next_group(group, left, span)
        return stage, phase

    return produce


# --- consumers: warps that multiply full stages ---------------------------------------------------
#
# Floats: four ``wgmma`` for 64 rows, then for the next 64. Their sums are promoted to float32 totals while
# the tensor cores work for the other warpgroup. The wait for the next stage and the loads of its scales
# overlap the last products of a step; scales of w are loaded one step before they are needed. Integers: only
# products, one step ahead of the wait, until the tile is done.

PING_PONG_BARRIER = TURNS[0]  # of the first warpgroup; that of the second follows
MIN_PING_PONG_STEPS = 24  # of the shortest tiles whose warpgroups multiply in ping-pong


@inlined
def ping_pong_barrier(warp: Any, steps: Any) -> Any:
    """The barrier at which a warpgroup waits until the products of the other one are in flight; 0 for short
    tiles, which need none: there one warpgroup writes its outputs while the other multiplies.
    """
    if steps < MIN_PING_PONG_STEPS:
        return uint32(0)
    return uint32(PING_PONG_BARRIER + uint32(warp >> 2))


@inlined
def no_ping_pong(warp: Any, steps: Any) -> Any:
    """A zero that the assembler must not know: the barriers that it guards keep loads in place."""
    return uint32(steps >> 31)


def stage_emptier(tile: BoxTile) -> Any:
    """The device function by which a warp says that it has multiplied a stage, to all who will fill it."""

    @inlined
    def of_block(empty: Any, lane: Any) -> None:
        if lane == 0:
            hopper.arrive(empty)

    @inlined
    def of_pair(empty: Any, lane: Any) -> None:
        # Each block fetches half of x for both: it may write a stage of the other one only when the consumers
        # of both have read theirs.
        if lane < uint32(2):
            hopper.arrive_in_block(empty, lane)

    return of_pair if tile.pair else of_block


class ThreadPlace(NamedTuple):
    """The place of a consumer thread."""

    lane: Any
    row: Any  # of the tile: the first of the warp's
    buffer: Any  # address of the warp's buffer of outputs
    at: Any  # of the thread's first sums in the buffer
    a: Any  # lower word of the descriptor of the first stage's x; likewise of w
    b: Any


def thread_placer(variant: Variant) -> Any:
    """The device function for the ThreadPlace of a consumer thread."""
    outputs_offset, rows_each, w_offset = (
        variant.layout.outputs,
        64 * variant.tile.halves,
        variant.tile.rows * STEP,
    )
    floats = variant.out.coded or variant.out.kind == "float32"

    @inlined
    def place_thread(ring: Any, warp: Any) -> Any:
        lane = hopper.pinned(warp_and_lane()[1])
        first_row = uint32(uint32(warp >> 2) * rows_each)
        inner = uint32(first_row + uint32(uint32(warp & 3) << 4))
        buffer = uint32(ring + outputs_offset + warp * BOX_BYTES)
        if floats:
            r, t = uint32(lane >> 2), uint32(lane & 3)
            chunk = uint32(uint32(t >> 1) ^ r)
            at = uint32(buffer + r * 128 + chunk * 16 + uint32(t & 1) * 8)
        else:
            r = uint32(lane & BOX_ROWS - 1)
            chunk = uint32(uint32(lane >> 4) ^ uint32(r & 7))
            at = uint32(buffer + r * 128 + chunk * 16)
        a = uint32(LOW | uint32(uint32(ring + first_row * STEP) >> 4))
        b = uint32(LOW | uint32(uint32(ring + w_offset) >> 4))
        return ThreadPlace(lane, inner, buffer, at, a, b)

    return place_thread


def float_consumer(variant: Variant, schedule: Schedule, write: Any) -> Any:
    """The device function of consumer warps for floats: they multiply the steps of each of their tiles."""
    tile, layout, form, stages = variant.tile, variant.layout, variant.form, variant.tile.stages
    length, scale_bytes, scales_offset = tile.stage // 16, layout.scale_bytes, layout.scales
    columns_per_scale, column_scales, boxed, halves, column_scales_offset = (
        variant.columns_per_scale, variant.column_scales, variant.boxed, form.halves, 4 * tile.rows,
    )  # fmt: skip
    do = float_products(form, variant.column_groups)
    zeros, nothing, begin, scales_of_w, upper, lower, open_turns = (
        do.zeros, do.nothing, do.start, do.scales_of_w, do.upper, do.lower, do.open_turns,
    )  # fmt: skip
    factors_first, factors_last, promote_first, promote_last = (
        do.factors[0], do.factors[-1], do.promote[0], do.promote[-1],
    )  # fmt: skip
    after, place_thread, empty_stage = stage_advancer(stages), thread_placer(variant), stage_emptier(tile)
    choose_barrier = ping_pong_barrier if tile.groups > 1 else no_ping_pong
    count_tiles, locate = schedule.walk

    @inlined
    def consume(ring: Any, full: Any, warp: Any, job: Any) -> None:
        words, terms, work = job.words, job.words.terms, job.work
        number, count, first_step, steps = work.number, count_tiles(work.tiles), work.first, work.last
        place = place_thread(ring, warp)
        scales_at = uint32(ring + scales_offset)
        row_scales_at = uint32(scales_at + uint32(uint32(place.row + uint32(place.lane >> 2)) << 2))
        column_scales_at = uint32(scales_at + column_scales_offset + uint32(uint32(place.lane & 3) << 3))
        stage, phase, sums, ping_pong = (
            uint32(0), uint32(0), nothing(), choose_barrier(warp, uint32(steps - first_step)),
        )  # fmt: skip
        open_turns(ping_pong)
        while number < count:
            row, column, scale_column = locate(number, work.tiles)
            w_scales = terms.table + uint64(uint32(scale_column // columns_per_scale)) * 4
            w_scales += uint64(first_step) * terms.pitch
            scale, totals, left = scales_of_w(w_scales), zeros(), uint32(steps - first_step)
            hopper.wait(uint32(full + stage * 8), phase)
            sums = begin(sums, uint32(row_scales_at + stage * scale_bytes))
            a, b = uint32(place.a + stage * length), uint32(place.b + stage * length)
            while left > 0:
                left = uint32(left - 1)
                w_scales += uint64(terms.pitch)
                next_scale = scales_of_w(w_scales)
                column_scales_now = uint32(column_scales_at + stage * scale_bytes)
                if halves == 2:
                    sums = upper(sums, a, b, ping_pong)
                    totals = promote_first(totals, sums, factors_first(sums, scale), column_scales_now)
                last_factors = factors_last(sums, scale)
                empty, a_now, b_now = uint32(full + 8 * stages + stage * 8), a, b
                stage, phase = after(stage, phase)
                a, b = uint32(place.a + stage * length), uint32(place.b + stage * length)
                sums = lower(
                    sums, a_now, b_now,
                    uint32(full + stage * 8), phase, left,
                    uint32(row_scales_at + stage * scale_bytes), ping_pong,
                )  # fmt: skip
                if column_scales:
                    totals = promote_last(totals, sums, last_factors, column_scales_now)
                # Scales of columns are read from the stage, so with them it is empty only now.
                empty_stage(empty, place.lane)
                if not column_scales:
                    totals = promote_last(totals, sums, last_factors, column_scales_now)
                scale = next_scale
            write(totals, place, ring, words.y, column, row, words.m, words.n, job.finals)
            number = uint32(number + work.stride)
        # The copy engine may still read the buffers of outputs, which end with the block.
        if boxed and place.lane == 0:
            hopper.wait_until_written()

    return consume


def row_terms_loader(variant: Variant) -> Any:
    """The device function that loads the scales, zero points and zero-point factors of a thread's rows."""
    zeros = variant.zeros

    @inlined
    def scale(row: Any, m: Any, terms: Any) -> Any:
        return ptx.load_float(terms.x_scales + uint32(min(row, uint32(m - 1)) // terms.rows_x) * terms.row_x)

    @inlined
    def point(row: Any, at: Any, m: Any) -> Any:
        if zeros:
            return ptx.load4_nc(at + uint64(min(row, uint32(m - 1))) * 4)
        return int32(0)

    @inlined
    def one_half(row: Any, m: Any, terms: Any) -> Any:
        low, high, points, others = row, uint32(row + 8), terms.points_x, terms.others_x
        zero_terms = (
            point(low, points, m), point(high, points, m), point(low, others, m), point(high, others, m),
        )  # fmt: skip
        return (scale(low, m, terms), scale(high, m, terms)), zero_terms

    @inlined
    def two_halves(row: Any, m: Any, terms: Any) -> Any:
        (a, b), (p, q, r, s) = one_half(row, m, terms)
        (c, d), (t, u, v, w) = one_half(uint32(row + 64), m, terms)
        return (a, b, c, d), (p, q, t, u, r, s, v, w)

    return two_halves if variant.form.halves == 2 else one_half


def integer_consumer(variant: Variant, schedule: Schedule, write: Any) -> Any:
    """The device function of consumer warps for integers; arguments as of :func:`float_consumer`."""
    tile, form, zeros = variant.tile, variant.form, variant.zeros
    stages, length, boxed = tile.stages, tile.stage // 16, variant.boxed
    products = unpromoted_products(form)
    nothing, advance, drain = products.zeros, products.advance, products.drain
    after, place_thread = stage_advancer(stages), thread_placer(variant)
    empty_stage = stage_emptier(tile)
    finish, load_row_terms = integer_epilogue(form.columns, form.halves, zeros), row_terms_loader(variant)
    count_tiles, locate = schedule.walk

    @inlined
    def consume(ring: Any, full: Any, warp: Any, job: Any) -> None:
        words, terms, work = job.words, job.words.terms, job.work
        number, count, steps = work.number, count_tiles(work.tiles), work.last
        place = place_thread(ring, warp)
        stage, phase = uint32(0), uint32(0)
        while number < count:
            row, column, scale_column = locate(number, work.tiles)
            totals, step, previous_empty = nothing(), uint32(0), uint32(0)
            while step < steps:
                barrier = uint32(full + stage * 8)
                a, b = uint32(place.a + stage * length), uint32(place.b + stage * length)
                hopper.wait(barrier, phase)
                totals = advance(totals, a, b)
                # `advance` starts products and waits for those before: now nobody reads the stage before.
                if step > 0:
                    empty_stage(previous_empty, place.lane)
                previous_empty = uint32(barrier + 8 * stages)
                stage, phase = after(stage, phase)
                step = uint32(step + 1)
            totals = drain(totals)
            empty_stage(previous_empty, place.lane)
            scales, points = load_row_terms(uint32(row + place.row + uint32(place.lane >> 2)), words.m, terms)
            column_at = uint32(scale_column + uint32(uint32(place.lane & 3) << 1))
            column_at = uint64(column_at) * 4
            results = finish(
                totals,
                scales,
                terms.w_scales + column_at,
                points,
                terms.points_w + column_at,
                terms.others_w + column_at,
            )
            write(results, place, ring, words.y, column, row, words.m, words.n, job.finals)
            number = uint32(number + work.stride)
        if boxed and place.lane == 0:
            hopper.wait_until_written()

    return consume


# --- words of a kernel: floats or integers ----------------------------------------------------------


class FloatTerms(NamedTuple):
    """The scales of w that consumers of floats read."""

    table: Any  # address: float32 [steps, pitch / 4], one for each ``columns_per_scale`` rows of w
    pitch: Any  # bytes


class RowTerms(NamedTuple):
    """The scales and zero-point terms of integers that consumers read, of x and of w."""

    x_scales: Any  # address
    row_x: Any  # bytes from a scale to the next
    rows_x: Any  # rows of x that share a scale
    w_scales: Any  # address, filled up to whole tiles like the last two
    points_x: Any  # int32: rows.ZeroTerms; likewise the others
    others_x: Any
    points_w: Any
    others_w: Any


@inlined
def read_floats(operands: Any, sizes: Any) -> Any:
    """The CodeWords of FP8, whose sums are promoted every 128 columns."""
    x, w, x_scales, column_scales_map, table, y = operands
    m, n, steps, span, pitch = sizes
    maps = CodeMaps(x, w, x_scales, column_scales_map, span)
    return CodeWords(maps, FloatTerms(table, pitch), y, m, n, steps)


@inlined
def read_integers(operands: Any, sizes: Any) -> Any:
    """The CodeWords of integers whose scales do not vary along K."""
    x, w, y, x_scales, row_x, w_scales, points_x, others_x, points_w, others_w = operands
    m, n, steps, rows_x = sizes
    terms = RowTerms(x_scales, row_x, rows_x, w_scales, points_x, others_x, points_w, others_w)
    return CodeWords(CodeMaps(x, w, uint64(0), uint64(0), uint32(1)), terms, y, m, n, steps)


@inlined
def read_sorted_floats(operands: Any, sizes: Any) -> Any:
    """Floats of experts: rows of x in the order of a plan, whose number does not matter."""
    return read_floats(operands, (uint32(0), *sizes))


@inlined
def read_sorted_integers(operands: Any, sizes: Any) -> Any:
    """Integers of experts: each row of x in the order of a plan, ``height`` of them, has its terms."""
    x, w, y, x_scales, points_x, others_x, w_scales, points_w, others_w = operands
    n, steps, height = sizes
    terms = RowTerms(x_scales, uint64(4), uint32(1), w_scales, points_x, others_x, points_w, others_w)
    return CodeWords(CodeMaps(x, w, uint64(0), uint64(0), uint32(1)), terms, y, height, n, steps)


def code_consumers(variant: Variant, rows_are_sorted: bool = False) -> CodeConsumers:
    """The consumers of a variant's codes; ``rows_are_sorted``: for experts."""
    if variant.integer:
        consumer = partial(integer_consumer, variant)
        words = (9, 3, read_sorted_integers) if rows_are_sorted else (10, 4, read_integers)
    else:
        consumer = partial(float_consumer, variant)
        words = (6, 4, read_sorted_floats) if rows_are_sorted else (6, 5, read_floats)
    return CodeConsumers(variant.frame, consumer, *words)


def opener(variant: Variant) -> Any:
    """The device function that starts a block: place the ring, make its barriers."""
    tile, place_ring = variant.tile, ring_placer(variant.layout.barriers)
    start = barrier_initializer(tile.stages, 4 * tile.groups * tile.blocks)
    pair = tile.pair

    @inlined
    def open_block() -> Any:
        ring, full = place_ring()
        if uint32(cuda.threadIdx.x) == 0:
            start(full)
        # Nobody may wait or arrive at barriers that are not made yet; of a pair, the other block does, too.
        if pair:
            hopper.sync_cluster()
        else:
            cuda.syncthreads()
        return ring, full

    return open_block


def late_opener(variant: Variant) -> Any:
    """The device function that starts a block which fetches nothing before its predecessor ends."""
    start = opener(variant)

    @inlined
    def open_block(operands: Any, sizes: Any) -> Any:
        ring, full = start()
        hopper.wait_for_predecessor()
        return ring, full, uint32(0)

    return open_block


def closer(tile: BoxTile) -> Any:
    """The device function that ends a block."""
    pair = tile.pair

    @inlined
    def close(ring: Any, job: Any) -> None:
        if pair:
            hopper.sync_warp()
            # The other block writes into this one's stages, and arrives at its barriers.
            hopper.sync_cluster()

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
        number, tiles = work.number, work.tiles
        stage, phase, total = uint32(0), uint32(0), count(tiles)
        codes, listed = choose(codes, tiles)
        while number < total:
            at, scale_column = place(number, tiles, listed)
            stage, phase = produce_steps(
                ring, full, stage, phase, codes, scales, at, scale_column, work.first, work.last, span
            )
            number = uint32(number + work.stride)

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
        down = uint32(uint32(m + (rows - 1)) // rows)
        across = uint32(uint32(n + (columns - 1)) // columns)
        return down, across

    return tiles_of


def product_locator(tile: BoxTile) -> Any:
    """The device function for a tile's first row, first column, and column of scales of w."""
    locate = raster_locator(tile, RASTER_HEIGHT)

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


def dense(variant: Variant, consumers: CodeConsumers) -> Schedule:
    """The schedule of blocks that stay on the card and take tile after tile of one product."""
    tiles_of, read_words = tiler(variant.tile), consumers.read

    @inlined
    def read(operands: Any, sizes: Any, results: Any, _: Any) -> Any:
        words = read_words(operands, sizes)
        tiles = tiles_of(words.m, words.n)
        work = TileWork(uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), tiles, uint32(0), words.steps)
        return CodeJob(words, work, results)

    produce = two_producers(consumers, *dense_producers(variant))
    walk = CodeWalk(count_in_product, product_locator(variant.tile))
    enclose = encloser(late_opener(variant), read)
    parameters = tuples(consumers.operands, consumers.sizes, 4)
    return Schedule(parameters, enclose, produce, closer(variant.tile), walk)


class SplitFinals(NamedTuple):
    """The facts that the epilogue of a block of a cluster needs beside sums."""

    rank: Any  # of the block in its cluster
    split: Any  # blocks of a cluster
    rows_per_block: Any  # that a block finishes; small_m.py: row_split
    inverse: Any  # its second result
    results: Any  # words of the epilogue


def split_k(variant: Variant, consumers: CodeConsumers) -> Schedule:
    """The schedule of blocks that make one part of the steps of one tile; the blocks of a tile are a cluster.

    Weights are fetched before the predecessor ends.
    """
    locate, tiles_of = product_locator(variant.tile), tiler(variant.tile)
    read_words, start = consumers.read, opener(variant)

    @inlined
    def open_block(operands: Any, sizes: Any) -> Any:
        m, n, steps = sizes[:3]
        split = sizes[-3]
        hopper.let_successor_start()
        ring, full = start()
        rank, number = hopper.rank_in_cluster(), uint32(uint32(cuda.blockIdx.x) // split)
        tiles = tiles_of(m, n)
        first = uint32(uint32(rank * steps) // split)
        last = uint32(uint32(uint32(rank + 1) * steps) // split)
        work = TileWork(number, count_in_product(tiles), tiles, first, last)  # each block has one tile
        return ring, full, (rank, work)

    @inlined
    def read(operands: Any, sizes: Any, results: Any, part: Any) -> Any:
        words = read_words(operands, sizes[:-3])
        split, rows_per_block, inverse = sizes[-3:]  # blocks of a cluster; small_m.py: row_split
        rank, work = part
        return CodeJob(words, work, SplitFinals(rank, split, rows_per_block, inverse, results))

    @inlined
    def aim(work: Any) -> Any:
        row, column, _ = locate(work.number, work.tiles)
        return row, column, work.first, work.last

    @inlined
    def leave(finals: Any) -> None:
        hopper.sync_warp()
        if finals.split != 1:
            hopper.arrive_at_cluster_relaxed()
            hopper.wait_for_cluster()
            hopper.sync_cluster()

    of_w, of_x = (part_producer(variant.layout, is_w) for is_w in (True, False))
    produce = two_producers(consumers, of_w, of_x, aim, leave)
    walk, enclose = CodeWalk(count_in_product, locate), encloser(open_block, read)
    parameters = tuples(consumers.operands, consumers.sizes + 3, 4)
    return Schedule(parameters, enclose, produce, closer(variant.tile), walk)


def part_producer(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that fetches an operand's steps of one part of a tile."""
    produce_steps = step_producer(layout, is_w)

    @inlined
    def produce(ring: Any, full: Any, codes: Any, scales: Any, part: Any, span: Any) -> None:
        row, column, first, last = part
        at = column if is_w else row
        if not is_w:
            hopper.wait_for_predecessor()  # the predecessor may have made x
        produce_steps(ring, full, uint32(0), uint32(0), codes, scales, at, at, first, last, span)

    return produce


# --- experts ----------------------------------------------------------------------------------


class ExpertTiles(NamedTuple):
    """The tiles of all experts."""

    count: Any
    plan: Any  # address
    across: Any  # tiles of an expert's weights
    n: Any  # rows of an expert's weights
    expert_columns: Any  # columns of an expert in tables of scales
    x_map: Any  # of x in place, where the uses are in order; else 0
    use_of_row: Any  # address: the use of each row of the plan


@inlined
def count_of_plan(tiles: Any) -> Any:
    return tiles.count


def expert_finder(tile: BoxTile) -> Any:
    """The device function for a tile's first row in the plan, its first column and its expert."""
    rows, locate = tile.rows, raster_locator(tile, RASTER_HEIGHT)

    @inlined
    def find(number: Any, tiles: Any) -> Any:
        plan, across = tiles.plan, tiles.across
        slot = uint32(number // across)
        v = ptx.load_words(plan + 4 * HEAD + uint64(slot) * 16)
        row, column = locate(uint32(number - uint32(v[1] * across)), v[2], across)
        return uint32(uint32(v[1] * rows) + row), column, v[0]

    return find


def experts(variant: Variant, consumers: CodeConsumers) -> Schedule:
    """The schedule of blocks that stay on the card and take the tiles of all experts from a plan."""
    find, columns, read_words = expert_finder(variant.tile), variant.tile.columns, consumers.read

    @inlined
    def read(operands: Any, sizes: Any, results: Any, _: Any) -> Any:
        x_map, (plan, use_of_row), expert_columns = operands[1], operands[-2:], sizes[-1]
        words = read_words(operands[:1] + operands[2:-2], sizes[:-1])
        across = uint32(uint32(words.n + (columns - 1)) // columns)
        x_map = x_map if ptx.load4(plan + 4) != 0 else uint64(0)
        count = uint32(ptx.load4(plan) * across)
        tiles = ExpertTiles(count, plan, across, words.n, expert_columns, x_map, use_of_row)
        work = TileWork(uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), tiles, uint32(0), words.steps)
        return CodeJob(words, work, (plan, use_of_row))

    @inlined
    def locate(number: Any, tiles: Any) -> Any:
        row, column, expert = find(number, tiles)
        return row, column, uint32(uint32(expert * tiles.expert_columns) + column)

    @inlined
    def choose_rows(codes: Any, tiles: Any) -> Any:
        in_place = tiles.x_map != 0
        return tiles.x_map if in_place else codes, in_place

    @inlined
    def place_w(number: Any, tiles: Any, in_place: Any) -> Any:
        _, column, expert = find(number, tiles)
        return uint32(uint32(expert * tiles.n) + column), uint32(
            uint32(expert * tiles.expert_columns) + column
        )

    @inlined
    def place_x(number: Any, tiles: Any, in_place: Any) -> Any:
        row, _, _ = find(number, tiles)
        at = row
        if in_place:
            at = ptx.load4(tiles.use_of_row + uint64(row) * 4)
        return at, row

    produce_w = tile_producer(variant.layout, True, as_it_is, place_w, count_of_plan)
    produce_x = tile_producer(variant.layout, False, choose_rows, place_x, count_of_plan)
    produce = two_producers(consumers, produce_w, produce_x)
    walk, enclose = CodeWalk(count_of_plan, locate), encloser(late_opener(variant), read)
    parameters = tuples(consumers.operands + 3, consumers.sizes + 1, 0)
    return Schedule(parameters, enclose, produce, closer(variant.tile), walk)
