"""The weights of 8-bit codes on Hopper: consumer warps that multiply full stages, and the words they need.

Floats: four ``wgmma`` for 64 rows, then for the next 64. Their sums are promoted to float32 totals while
the tensor cores work for the other warpgroup. The wait for the next stage and the loads of its scales
overlap the last products of a step; scales of w are loaded one step before they are needed. Integers: only
products, one step ahead of the wait, until the tile is done.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..epilogue.wgmma_sums import integer_epilogue
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, codes8, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.boxes import BUFFER, ROWS
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import int32, uint32, uint64
from ..intrinsics.wgmma import LOW, STEP, TURNS, float_products, unpromoted_products
from ..rings.boxed import BoxTile, stage_advancer
from ..warp_specialized.kernel import Schedule
from .blocks import CodeWeights
from .variant import Variant

FIRST_TURN, LEAST = TURNS[0], 24  # steps of the shortest tiles whose warpgroups take turns


@inlined
def turn_of(warp: Any, steps: Any) -> Any:
    """The barrier by which a warpgroup takes turns; 0 for short tiles, which need none.

    There one warpgroup writes its outputs while the other multiplies.
    """
    if steps < uint32(LEAST):
        return uint32(0)
    return uint32(uint32(FIRST_TURN) + uint32(warp >> uint32(2)))


@inlined
def no_turn(warp: Any, steps: Any) -> Any:
    """A zero that the assembler must not know: the barriers that it guards keep loads in place."""
    return uint32(steps >> uint32(31))


def stage_emptier(tile: BoxTile) -> Any:
    """The device function by which a warp says that it has multiplied a stage, to all who will fill it."""
    arrive, arrive_in_block = barriers.arrive, barriers.arrive_in_block

    @inlined
    def of_block(empty: Any, lane: Any) -> None:
        if lane == uint32(0):
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
        first_row = uint32(uint32(warp >> uint32(2)) * uint32(rows_each))
        inner = uint32(first_row + uint32(uint32(warp & uint32(3)) << uint32(4)))
        buffer = uint32(ring + uint32(outputs_offset) + warp * uint32(BUFFER))
        if floats:
            r, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
            chunk = uint32(uint32(t >> uint32(1)) ^ r)
            at = uint32(buffer + r * uint32(128) + chunk * uint32(16) + uint32(t & uint32(1)) * uint32(8))
        else:
            r = uint32(lane & uint32(ROWS - 1))
            chunk = uint32(uint32(lane >> uint32(4)) ^ uint32(r & uint32(7)))
            at = uint32(buffer + r * uint32(128) + chunk * uint32(16))
        a = uint32(uint32(LOW) | uint32(uint32(ring + first_row * uint32(STEP)) >> uint32(4)))
        b = uint32(uint32(LOW) | uint32(uint32(ring + uint32(w_offset)) >> uint32(4)))
        return lane, inner, buffer, at, a, b

    return place_thread


def float_consumer(variant: Variant, schedule: Schedule, write: Any) -> Any:
    """The device function of consumer warps for floats: they multiply the steps of each tile of ``work``.

    ``needs``: blocks.py. ``finals`` is for ``write`` alone.
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
        scales_at = uint32(ring + uint32(scales_offset))
        row_scales_at = uint32(scales_at + uint32(uint32(inner + uint32(lane >> uint32(2))) << uint32(2)))
        column_scales_at = uint32(
            scales_at + uint32(column_scales_offset) + uint32(uint32(lane & uint32(3)) << uint32(3))
        )
        stage, phase, sums, turn = (
            uint32(0), uint32(0), nothing(), choose_turn(warp, uint32(steps - first_step)),
        )  # fmt: skip
        open_turns(turn)
        while number < count:
            row, column, scale_column = locate(number, tiles)
            w_scales = table + uint64(uint32(scale_column // uint32(columns_per_scale))) * uint64(4)
            w_scales += uint64(first_step) * uint64(pitch)
            scale, totals, left = scales_of_w(w_scales), zeros(), uint32(steps - first_step)
            wait(uint32(full + stage * uint32(8)), phase)
            sums = begin(sums, uint32(row_scales_at + stage * uint32(scale_bytes)))
            a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
            while left > uint32(0):
                left = uint32(left - uint32(1))
                w_scales += uint64(pitch)
                next_scale = scales_of_w(w_scales)
                column_scales_now = uint32(column_scales_at + stage * uint32(scale_bytes))
                if halves == 2:
                    sums = upper(sums, a, b, turn)
                    totals = promote_first(totals, sums, factors_first(sums, scale), column_scales_now)
                last_factors = factors_last(sums, scale)
                empty, a_now, b_now = uint32(full + uint32(8 * stages) + stage * uint32(8)), a, b
                stage, phase = after(stage, phase)
                a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
                sums = lower(
                    sums, a_now, b_now,
                    uint32(full + stage * uint32(8)), phase, left,
                    uint32(row_scales_at + stage * uint32(scale_bytes)), turn,
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
        return load_float(x_scales + uint64(uint32(min(row, uint32(m - uint32(1))) // rows_x)) * row_x)

    @inlined
    def point(row: Any, at: Any, m: Any) -> Any:
        if zeros:
            return load4(at + uint64(min(row, uint32(m - uint32(1)))) * uint64(4))
        return int32(0)

    @inlined
    def one_half(row: Any, arguments: Any) -> Any:
        m, _, _, _, points, others = arguments
        low, high = row, uint32(row + uint32(8))
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
        (c, d), (t, u, v, w) = one_half(uint32(row + uint32(64)), arguments)
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
                barrier = uint32(full + stage * uint32(8))
                a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
                wait(barrier, phase)
                totals = advance(totals, a, b)
                if step > uint32(0):
                    empty_stage(previous_empty, lane)
                previous_empty = uint32(barrier + uint32(8 * stages))
                stage, phase = after(stage, phase)
                step = uint32(step + uint32(1))
            totals = drain(totals)
            empty_stage(previous_empty, lane)
            x_terms = (m, x_scales, row_x, rows_x, points_x, others_x)
            scales, points = load_row_terms(uint32(row + inner + uint32(lane >> uint32(2))), x_terms)
            column_at = uint32(scale_column + uint32(uint32(lane & uint32(3)) << uint32(1)))
            column_at = uint64(column_at) * uint64(4)
            results = finish(
                totals, scales, w_scales + column_at, points, points_w + column_at, others_w + column_at
            )
            write(results, (lane, inner, buffer, at), ring, y, column, row, m, n, finals)
            number = uint32(number + stride)
        if boxed and lane == uint32(0):
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
