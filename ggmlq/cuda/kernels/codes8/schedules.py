"""Schedules of the kernel for 8-bit codes: which tiles a block makes, which of their steps, where they lie.

    dense      blocks stay on the card and take tile after tile of one product
    split_k    a block makes one part of the steps of one tile; the blocks of a tile are a cluster
    experts    blocks stay and take the tiles of all experts from a plan (layouts/groups.py)

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

from ...intrinsics import barrier as barriers
from ...intrinsics import boxes, codes, codes8, dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.boxes import BUFFER, ROWS
from ...intrinsics.lane import warp_and_lane
from ...intrinsics.language import cuda, int32, types, uint32, uint64
from ...intrinsics.wgmma import LOW, STEP, TURNS, float_products, unpromoted_products
from ...layouts.groups import HEAD
from ..hopper.frame import Frame, Schedule, barrier_initializer, stage_advancer
from .boxed import (
    BoxTile,
    SharedLayout,
    raster,
    ring_placer,
    step_producer,
)  # fmt: skip
from .variant import RASTER_HEIGHT, Variant
from .wgmma_sums import integer_epilogue

# The common parts of blocks that multiply 8-bit codes: the words of a kernel, and both producers.
#
# Producers are two threads in warps of their own, one for codes of w, one for those of x. A kernel takes
# three tuples of words:
#
#     operands   addresses and tensor maps
#     sizes      integers of the schedule
#     results    words of the epilogue
#
# The tuples of kernels/hopper/frame.py are here, with ``work`` for the tiles and steps of a block, and
# ``finals`` for what the epilogue needs beside sums:
#
#     sources    maps of codes of x and of w, of their scales; steps that share a scale of x; work; finals
#     needs      scales and zero points; outputs; work; rows and columns of the outputs; finals


class CodeWeights(NamedTuple):
    """The weights of 8-bit codes, and the words that their schedules read."""

    frame: Frame
    consumer: Callable[..., Any]  # as of kernels/hopper/frame.py: Consumers
    words: tuple[int, int]  # operands, sizes
    read: Any  # (operands, sizes) -> maps, terms of consumers, outputs, their rows and columns, steps


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
    weights: CodeWeights, produce_w: Any, produce_x: Any, aim: Any = whole, leave: Any = leave_at_once
) -> Any:
    """The device function of the producers' warps, behind those of consumers.

    ``produce_w``, ``produce_x``: the device functions (ring, full, codes, scales, part, span) of one thread.
    ``aim``: that for the part of the work that they need. ``leave``: that for the end of these warps.
    """
    first = 32 * weights.frame.consumers

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        (x, w, x_scales, w_scales, span), work, finals = sources
        part, thread = aim(work), uint32(cuda.threadIdx.x)
        if thread == first:
            produce_w(ring, full, w, w_scales, part, span)
        if thread == first + 32:
            produce_x(ring, full, x, x_scales, part, span)
        leave(finals)

    return produce


def tuples(operands: int, sizes: int, results: int) -> tuple[Any, ...]:
    """The types of a kernel's parameters, by the number of words in each."""
    return types.UniTuple(uint64, operands), types.UniTuple(uint32, sizes), types.UniTuple(uint64, results)


def encloser(open_block: Any, read: Any) -> Callable[[Any], Any]:
    """The function for a kernel whose blocks all have work.

    ``open_block``: the device function (operands, sizes) for the ring, its full barriers and facts of the
    block. ``read``: that from the three tuples and these facts to maps, terms, outputs, their rows and
    columns, work and finals.
    """
    first_lane = barriers.from_first_lane

    def enclose(run: Any) -> Any:
        def product(operands: Any, sizes: Any, results: Any) -> None:
            ring, full, facts = open_block(operands, sizes)
            warp = first_lane(uint32(uint32(cuda.threadIdx.x) >> 5))
            maps, terms, y, extent, work, finals = read(operands, sizes, results, facts)
            run(ring, full, warp, (maps, work, finals), (terms, y, work, extent, finals))

        return product

    return enclose


# The weights of 8-bit codes on Hopper: consumer warps that multiply full stages, and the words they need.
#
# Floats: four ``wgmma`` for 64 rows, then for the next 64. Their sums are promoted to float32 totals while
# the tensor cores work for the other warpgroup. The wait for the next stage and the loads of its scales
# overlap the last products of a step; scales of w are loaded one step before they are needed. Integers: only
# products, one step ahead of the wait, until the tile is done.

FIRST_TURN, LEAST = TURNS[0], 24  # steps of the shortest tiles whose warpgroups take turns


@inlined
def turn_of(warp: Any, steps: Any) -> Any:
    """The barrier by which a warpgroup takes turns; 0 for short tiles, which need none.

    There one warpgroup writes its outputs while the other multiplies.
    """
    if steps < LEAST:
        return uint32(0)
    return uint32(FIRST_TURN + uint32(warp >> 2))


@inlined
def no_turn(warp: Any, steps: Any) -> Any:
    """A zero that the assembler must not know: the barriers that it guards keep loads in place."""
    return uint32(steps >> uint32(31))


def stage_emptier(tile: BoxTile) -> Any:
    """The device function by which a warp says that it has multiplied a stage, to all who will fill it."""
    arrive, arrive_in_block = barriers.arrive, barriers.arrive_in_block

    @inlined
    def of_block(empty: Any, lane: Any) -> None:
        if lane == 0:
            arrive(empty)

    @inlined
    def of_pair(empty: Any, lane: Any) -> None:
        if lane < uint32(2):
            arrive_in_block(empty, lane)

    return of_pair if tile.pair else of_block


def thread_placer(variant: Variant) -> Any:
    """The device function for the position of a consumer thread.

    It returns the lane, the warp's first row, the warp's buffer of outputs, the thread's place in the buffer,
    and the lower words of the operands' descriptors.
    """
    outputs_offset, rows_each, w_offset = (
        variant.layout.outputs,
        64 * variant.tile.halves,
        variant.tile.rows * STEP,
    )
    floats, pinned = variant.out.coded or variant.out.kind == "float32", barriers.pinned

    @inlined
    def place_thread(ring: Any, warp: Any) -> Any:
        lane = pinned(warp_and_lane()[1])
        first_row = uint32(uint32(warp >> 2) * rows_each)
        inner = uint32(first_row + uint32(uint32(warp & 3) << 4))
        buffer = uint32(ring + outputs_offset + warp * BUFFER)
        if floats:
            r, t = uint32(lane >> 2), uint32(lane & 3)
            chunk = uint32(uint32(t >> 1) ^ r)
            at = uint32(buffer + r * 128 + chunk * 16 + uint32(t & 1) * 8)
        else:
            r = uint32(lane & ROWS - 1)
            chunk = uint32(uint32(lane >> 4) ^ uint32(r & 7))
            at = uint32(buffer + r * 128 + chunk * 16)
        a = uint32(LOW | uint32(uint32(ring + first_row * STEP) >> 4))
        b = uint32(LOW | uint32(uint32(ring + w_offset) >> 4))
        return lane, inner, buffer, at, a, b

    return place_thread


def float_consumer(variant: Variant, schedule: Schedule, write: Any) -> Any:
    """The device function of consumer warps for floats: they multiply the steps of each tile of ``work``.

    ``needs``: schedules.py. ``finals`` is for ``write`` alone.
    """
    tile, layout, form = variant.tile, variant.layout, variant.form
    stages, length, scale_bytes, scales_offset = (
        tile.stages,
        tile.stage // 16,
        layout.scale_bytes,
        layout.scales,
    )
    columns_per_scale, column_scales, boxed, halves, column_scales_offset = (
        variant.columns_per_scale, variant.column_scales, variant.boxed, form.halves, 4 * tile.rows,
    )  # fmt: skip
    do = float_products(form, variant.column_groups)
    zeros, nothing, begin, upper, lower, open_turns, scales_of_w = (
        do.zeros, do.nothing, do.start, do.upper, do.lower, do.open_turns, do.scales_of_w
    )  # fmt: skip
    factors_first, factors_last, promote_first, promote_last = (
        do.factors[0], do.factors[-1], do.promote[0], do.promote[-1],
    )  # fmt: skip
    after, place_thread, choose_turn = (
        stage_advancer(stages),
        thread_placer(variant),
        turn_of if tile.groups > 1 else no_turn,
    )
    wait, empty_stage, wait_until_written = barriers.wait, stage_emptier(tile), boxes.wait_until_written
    count_tiles, locate = schedule.walk

    @inlined
    def consume(ring: Any, full: Any, warp: Any, needs: Any) -> None:
        (table, pitch), y, (number, stride, tiles, first_step, steps), (m, n), finals = needs
        count = count_tiles(tiles)
        lane, inner, buffer, at, first_a, first_b = place_thread(ring, warp)
        scales_at = uint32(ring + scales_offset)
        row_scales_at = uint32(scales_at + uint32(uint32(inner + uint32(lane >> 2)) << 2))
        column_scales_at = uint32(scales_at + column_scales_offset + uint32(uint32(lane & 3) << 3))
        stage, phase, sums, turn = (
            uint32(0), uint32(0), nothing(), choose_turn(warp, uint32(steps - first_step)),
        )  # fmt: skip
        open_turns(turn)
        while number < count:
            row, column, scale_column = locate(number, tiles)
            w_scales = table + uint64(uint32(scale_column // columns_per_scale)) * 4
            w_scales += uint64(first_step) * pitch
            scale, totals, left = scales_of_w(w_scales), zeros(), uint32(steps - first_step)
            wait(uint32(full + stage * 8), phase)
            sums = begin(sums, uint32(row_scales_at + stage * scale_bytes))
            a, b = uint32(first_a + stage * length), uint32(first_b + stage * length)
            while left > 0:
                left = uint32(left - 1)
                w_scales += uint64(pitch)
                next_scale = scales_of_w(w_scales)
                column_scales_now = uint32(column_scales_at + stage * scale_bytes)
                if halves == 2:
                    sums = upper(sums, a, b, turn)
                    totals = promote_first(totals, sums, factors_first(sums, scale), column_scales_now)
                last_factors = factors_last(sums, scale)
                empty, a_now, b_now = uint32(full + 8 * stages + stage * 8), a, b
                stage, phase = after(stage, phase)
                a, b = uint32(first_a + stage * length), uint32(first_b + stage * length)
                sums = lower(
                    sums, a_now, b_now,
                    uint32(full + stage * 8), phase, left,
                    uint32(row_scales_at + stage * scale_bytes), turn,
                )  # fmt: skip
                if column_scales:
                    totals = promote_last(totals, sums, last_factors, column_scales_now)
                empty_stage(empty, lane)
                if not column_scales:
                    totals = promote_last(totals, sums, last_factors, column_scales_now)
                scale = next_scale
            write(totals, (lane, inner, buffer, at), ring, y, column, row, m, n, finals)
            number = uint32(number + stride)
        if boxed and lane == uint32(0):
            wait_until_written()

    return consume


def row_terms_loader(variant: Variant) -> Any:
    """The device function that loads the scales, zero points and zero-point factors of a thread's rows."""
    load_float, load4, zeros = ptx.load_float, codes8.load4, variant.zeros

    @inlined
    def scale(row: Any, arguments: Any) -> Any:
        m, x_scales, row_x, rows_x, _, _ = arguments
        return load_float(x_scales + uint32(min(row, uint32(m - 1)) // rows_x) * row_x)

    @inlined
    def point(row: Any, at: Any, m: Any) -> Any:
        if zeros:
            return load4(at + uint64(min(row, uint32(m - 1))) * 4)
        return int32(0)

    @inlined
    def one_half(row: Any, arguments: Any) -> Any:
        m, _, _, _, points, others = arguments
        low, high = row, uint32(row + 8)
        zero_terms = (
            point(low, points, m),
            point(high, points, m),
            point(low, others, m),
            point(high, others, m),
        )
        return (scale(low, arguments), scale(high, arguments)), zero_terms

    @inlined
    def two_halves(row: Any, arguments: Any) -> Any:
        (a, b), (p, q, r, s) = one_half(row, arguments)
        (c, d), (t, u, v, w) = one_half(uint32(row + 64), arguments)
        return (a, b, c, d), (p, q, t, u, r, s, v, w)

    return two_halves if variant.form.halves == 2 else one_half


def integer_consumer(variant: Variant, schedule: Schedule, write: Any) -> Any:
    """The device function of consumer warps for integers; arguments as of :func:`float_consumer`."""
    tile, form, zeros = variant.tile, variant.form, variant.zeros
    stages, length, boxed = tile.stages, tile.stage // 16, variant.boxed
    nothing, advance, drain = unpromoted_products(form)
    after, place_thread = stage_advancer(stages), thread_placer(variant)
    wait, empty_stage, wait_until_written = barriers.wait, stage_emptier(tile), boxes.wait_until_written
    finish, load_row_terms = integer_epilogue(form.columns, form.halves, zeros), row_terms_loader(variant)
    count_tiles, locate = schedule.walk

    @inlined
    def consume(ring: Any, full: Any, warp: Any, needs: Any) -> None:
        terms, y, (number, stride, tiles, _, steps), (m, n), finals = needs
        x_scales, row_x, rows_x, w_scales, points_x, others_x, points_w, others_w = terms
        count = count_tiles(tiles)
        lane, inner, buffer, at, first_a, first_b = place_thread(ring, warp)
        stage, phase = uint32(0), uint32(0)
        while number < count:
            row, column, scale_column = locate(number, tiles)
            totals, step, previous_empty = nothing(), uint32(0), uint32(0)
            while step < steps:
                barrier = uint32(full + stage * 8)
                a, b = uint32(first_a + stage * length), uint32(first_b + stage * length)
                wait(barrier, phase)
                totals = advance(totals, a, b)
                if step > 0:
                    empty_stage(previous_empty, lane)
                previous_empty = uint32(barrier + 8 * stages)
                stage, phase = after(stage, phase)
                step = uint32(step + 1)
            totals = drain(totals)
            empty_stage(previous_empty, lane)
            x_terms = (m, x_scales, row_x, rows_x, points_x, others_x)
            scales, points = load_row_terms(uint32(row + inner + uint32(lane >> 2)), x_terms)
            column_at = uint32(scale_column + uint32(uint32(lane & 3) << 1))
            column_at = uint64(column_at) * 4
            results = finish(
                totals, scales, w_scales + column_at, points, points_w + column_at, others_w + column_at
            )
            write(results, (lane, inner, buffer, at), ring, y, column, row, m, n, finals)
            number = uint32(number + stride)
        if boxed and lane == 0:
            wait_until_written()

    return consume


# --- weights: floats or integers ----------------------------------------------------------------


@inlined
def read_floats(operands: Any, sizes: Any) -> Any:
    """FP8, whose sums are promoted every 128 columns.

    Maps of codes; the map of scales of x [K / (128 · span), M]; that of scales of w [steps, N], where each
    row of w has its own; or else a table of them, float32 [steps, pitch / 4], one for each
    ``columns_per_scale`` rows; the outputs.
    """
    x, w, x_scales, column_scales_map, table, y = operands
    m, n, steps, span, pitch = sizes
    return (x, w, x_scales, column_scales_map, span), (table, pitch), y, (m, n), steps


@inlined
def read_integers(operands: Any, sizes: Any) -> Any:
    """Integers whose scales do not vary along K.

    Maps of codes; the outputs; scales of x, and the bytes from one to the next; scales of w, filled up to
    whole tiles like its last two; int32: rows.ZeroTerms. ``rows_x``: the rows of x that share a scale.
    """
    x, w, y, x_scales, row_x, w_scales, points_x, others_x, points_w, others_w = operands
    m, n, steps, rows_x = sizes
    terms = x_scales, row_x, rows_x, w_scales, points_x, others_x, points_w, others_w
    return (x, w, uint64(0), uint64(0), uint32(1)), terms, y, (m, n), steps


@inlined
def read_sorted_floats(operands: Any, sizes: Any) -> Any:
    """Floats of experts: rows of x in the order of a plan, whose number does not matter."""
    return read_floats(operands, (uint32(0), *sizes))


@inlined
def read_sorted_integers(operands: Any, sizes: Any) -> Any:
    """Integers of experts: each row of x in the order of a plan, ``height`` of them, has its terms."""
    x, w, y, x_scales, points_x, others_x, w_scales, points_w, others_w = operands
    n, steps, height = sizes
    terms = x_scales, uint64(4), uint32(1), w_scales, points_x, others_x, points_w, others_w
    return (x, w, uint64(0), uint64(0), uint32(1)), terms, y, (height, n), steps


def weights_of(variant: Variant, rows_are_sorted: bool = False) -> CodeWeights:
    """The weights of a variant's codes; ``rows_are_sorted``: for experts."""
    if variant.integer:
        words, read = ((9, 3), read_sorted_integers) if rows_are_sorted else ((10, 4), read_integers)
        return CodeWeights(variant.frame, partial(integer_consumer, variant), words, read)
    words, read = ((6, 4), read_sorted_floats) if rows_are_sorted else ((6, 5), read_floats)
    return CodeWeights(variant.frame, partial(float_consumer, variant), words, read)


def opener(variant: Variant) -> Any:
    """The device function that starts a block: place the ring, make its barriers."""
    tile, place_ring = variant.tile, ring_placer(variant.layout.barriers)
    start = barrier_initializer(tile.stages, 4 * tile.groups * tile.blocks)
    pair, sync_cluster = tile.pair, barriers.sync_cluster

    @inlined
    def open_block() -> Any:
        ring, full = place_ring()
        if uint32(cuda.threadIdx.x) == 0:
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
        down = uint32(uint32(m + (rows - 1)) // rows)
        across = uint32(uint32(n + (columns - 1)) // columns)
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
        last = uint32(uint32(uint32(rank + 1) * steps) // split)
        work = number, count_in_product(tiles), tiles, first, last  # each block has one tile
        return ring, full, (rank, work)

    @inlined
    def read(operands: Any, sizes: Any, results: Any, part: Any) -> Any:
        maps, terms, y, extent, _ = read_weights(operands, sizes[:-3])
        split, rows_per_block, inverse = sizes[-3:]  # blocks of a cluster; small_m.py: row_split
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
        if finals[1] != 1:
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
        v = load_words(plan + 4 * HEAD + uint64(slot) * 16)
        row, column = locate(uint32(number - uint32(v[1] * across)), v[2], across)
        return uint32(uint32(v[1] * rows) + row), column, v[0]

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
        across = uint32(uint32(n + (columns - 1)) // columns)
        x_map = x_map if load4(plan + 4) != 0 else uint64(0)
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
        in_place = tiles[5] != 0
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
            at = load4(tiles[6] + uint64(row) * 4)
        return at, row

    produce_w = tile_producer(variant.layout, True, as_it_is, place_w, count_of_plan)
    produce_x = tile_producer(variant.layout, False, choose_rows, place_x, count_of_plan)
    produce = two_producers(weights, produce_w, produce_x)
    (operands, sizes), walk = weights.words, CodeWalk(count_of_plan, locate)
    enclose = encloser(late_opener(variant), read)
    return Schedule(tuples(operands + 3, sizes + 1, 0), enclose, produce, closer(variant.tile), walk)
