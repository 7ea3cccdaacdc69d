"""The weights of products with few rows of x (small_m.py): consumer warps that multiply full stages.

With tiles of 64 rows the two warpgroups take the steps in turns, with 128 each has its own rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes8, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.promoted import float_products
from ..intrinsics.wgmma8 import LOW, STEP, unpromoted_products
from ..rings.boxed import stage_advancer
from ..warp_specialized.kernel import Schedule
from .blocks import CodeWeights
from .small_m import CONSUMER_THREADS, SmallMTile, SmallMVariant


def row_finder(listed: bool) -> Any:
    """The device function that gives the i-th row of x or of w, at most the last; ``listed``: from a list."""
    take4 = bf16x2.take4

    @inlined
    def next_row(first: Any, i: Any, limit: Any) -> Any:
        return min(uint32(first + i), uint32(limit - uint32(1)))

    @inlined
    def listed_row(locate: Any, i: Any, count: Any) -> Any:
        return take4(uint32(locate + uint32(min(i, uint32(count - uint32(1))) << uint32(2))))

    return listed_row if listed else next_row


def scale_copier(count: int, listed: bool = False) -> Any:
    """The device function that starts to copy scales of ``count`` rows and some steps into shared memory."""
    find = row_finder(listed)
    shift, stride, copy = count.bit_length() - 1, CONSUMER_THREADS // count, codes8.copy4

    @inlined
    def copy_scales(
        to: Any, scales: Any, row: Any, column: Any, rows: Any, span: Any,
        from_row: Any, limit: Any, first: Any, last: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        row_index = find(from_row, uint32(thread & uint32(count - 1)), limit)
        at, to = scales + uint64(uint32(row_index // rows)) * row, uint32(to + uint32(thread << uint32(2)))
        step = uint32(first + uint32(thread >> uint32(shift)))
        while step < last:
            copy(to, at + uint64(uint32(step // span)) * column)
            to, step = uint32(to + uint32(4 * CONSUMER_THREADS)), uint32(step + uint32(stride))

    return copy_scales


def integer_scale_copier(zeros: bool, listed: bool = False) -> Any:
    """The device function that starts to copy a scale and zero-point terms for each row of integers."""
    copy, find = codes8.copy4, row_finder(listed)

    @inlined
    def copy_scales(
        to: Any, count: Any, scales: Any, row: Any, rows: Any, points: Any, others: Any,
        from_row: Any, limit: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        if thread < count:
            row_index = find(from_row, thread, limit)
            at, to = uint64(row_index) * uint64(4), uint32(to + uint32(thread << uint32(2)))
            copy(to, scales + uint64(uint32(row_index // rows)) * row)
            if zeros:
                copy(uint32(to + uint32(count << uint32(2))), points + at)
                copy(uint32(to + uint32(count << uint32(3))), others + at)

    return copy_scales


def thread_placer(tile: SmallMTile) -> Any:
    """The device function for the position of a thread.

    It returns the lane, the first row and column among the sums of the block, the warpgroup's turn, and the
    lower words of the operands' descriptors.
    """
    side_by_side, x_offset = tile.turns == 1, tile.rows * STEP

    @inlined
    def place_thread(ring: Any, group: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        below = uint32(group << uint32(6)) if side_by_side else uint32(0)
        turn = uint32(0) if side_by_side else group
        warp = uint32(uint32(thread >> uint32(5)) & uint32(3))
        row = uint32(below + uint32(warp << uint32(4)) + uint32(lane >> uint32(2)))
        a = uint32(uint32(LOW) | uint32(uint32(ring + below * uint32(STEP)) >> uint32(4)))
        b = uint32(uint32(LOW) | uint32(uint32(ring + uint32(x_offset)) >> uint32(4)))
        return lane, row, uint32(uint32(lane & uint32(3)) << uint32(1)), turn, a, b

    return place_thread


def scale_placer(variant: SmallMVariant) -> Any:
    """The device function for the addresses of scales of w, of scales of x, and of the list of rows or 0."""
    tile, listed = variant.tile, variant.tile.row_list if variant.listed else 0
    scales_offset, x_scales_offset = tile.scales, tile.scales_of_x

    @inlined
    def place_scales(ring: Any) -> Any:
        row_list = uint32(ring + uint32(listed)) if listed else uint32(0)
        return uint32(ring + uint32(scales_offset)), uint32(ring + uint32(x_scales_offset)), row_list

    return place_scales


def stage_strider(tile: SmallMTile) -> Any:
    """The device function that gives the stage and the parity of a warpgroup's next step."""
    after, turns = stage_advancer(tile.stages), tile.turns

    @inlined
    def stride(stage: Any, phase: Any) -> Any:
        for _ in range(turns):
            stage, phase = after(stage, phase)
        return stage, phase

    return stride


def float_consumer(variant: SmallMVariant, schedule: Schedule, send: Any) -> Any:
    """The device function of consumer warps for floats: sums are promoted, then sent to the blocks that
    finish them.
    """
    tile = variant.tile
    stages, length, columns, chunk = tile.stages, tile.stage // 16, tile.columns, tile.chunk
    zeros, nothing, begin, first_products, _, _, _, factors, promote, unscaled = float_products(
        variant.form, 0
    )
    row_factors, promoted = factors[0], promote[0]
    rows, turns, place_thread, stride = tile.rows, tile.turns, thread_placer(tile), stage_strider(tile)
    copy_w_scales, copy_x_scales = scale_copier(rows), scale_copier(columns, variant.listed)
    place_scales, meet, wait, arrive = (
        scale_placer(variant), barriers.named_barrier(1, CONSUMER_THREADS), barriers.wait, barriers.arrive,
    )  # fmt: skip
    wait_for_predecessor, commit, wait_for_copies = (
        dependent_launch.wait_for_predecessor, ptx.commit, ptx.wait_for_all_but(0),
    )  # fmt: skip

    @inlined
    def consume(ring: Any, full: Any, warp: Any, needs: Any) -> None:
        terms, _, (_, _, row0, n, first, last), extent, finals = needs
        x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w = terms[0]
        m, rank, halvings = extent[0], finals[0], finals[1]
        lane, row, column, turn, a0, b0 = place_thread(ring, uint32(uint32(warp) >> uint32(2)))
        w_scales_at, x_scales_at, row_list = place_scales(ring)
        totals, sums, stage, phase = zeros(), nothing(), turn, uint32(0)
        base, step = first, uint32(first + turn)
        while base < last:
            stop = min(uint32(base + uint32(chunk)), last)
            copy_w_scales(w_scales_at, w_scales, row_w, column_w, rows_w, span_w, row0, n, base, stop)
            wait_for_predecessor()
            copy_x_scales(x_scales_at, x_scales, row_x, column_x, rows_x, span_x, row_list, m, base, stop)
            commit()
            wait_for_copies()
            meet()
            ahead = uint32(uint32(step - base) << uint32(2))
            w_scale_at = uint32(w_scales_at + ahead * uint32(rows) + uint32(row << uint32(2)))
            across = uint32(x_scales_at + ahead * uint32(columns) + uint32(column << uint32(2)))
            while step < stop:
                barrier, stage_offset = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
                wait(barrier, phase)
                sums = begin(sums, w_scale_at)
                factors_now = row_factors(sums, unscaled(w_scales))
                sums = first_products(sums, uint32(a0 + stage_offset), uint32(b0 + stage_offset))
                if lane == uint32(0):
                    arrive(uint32(barrier + uint32(8 * stages)))
                totals = promoted(totals, sums, factors_now, across)
                stage, phase = stride(stage, phase)
                w_scale_at = uint32(w_scale_at + uint32(4 * turns * rows))
                across = uint32(across + uint32(4 * turns * columns))
                step = uint32(step + uint32(turns))
            meet()  # nobody reads these scales any more
            base = stop
        wait_for_predecessor()  # even without a step: the predecessor may read the outputs
        send(ring, totals, row, column, turn, rank, halvings)

    return consume


def integer_consumer(variant: SmallMVariant, schedule: Schedule, send: Any) -> Any:
    """The device function of consumer warps for integers, whose sums are exact."""
    tile = variant.tile
    stages, length, columns = tile.stages, tile.stage // 16, tile.columns
    nothing, advance, drain = unpromoted_products(variant.form)
    rows, turns, place_thread, stride = tile.rows, tile.turns, thread_placer(tile), stage_strider(tile)
    copy_w_scales, copy_x_scales, place_scales = (
        integer_scale_copier(variant.zeros), integer_scale_copier(variant.zeros, variant.listed),
        scale_placer(variant),
    )  # fmt: skip
    wait, arrive, wait_for_predecessor = barriers.wait, barriers.arrive, dependent_launch.wait_for_predecessor
    commit, wait_for_copies = ptx.commit, ptx.wait_for_all_but(0)

    @inlined
    def consume(ring: Any, full: Any, warp: Any, needs: Any) -> None:
        terms, _, (_, _, row0, n, first, last), extent, finals = needs
        x_scales, row_x, _, rows_x, _, w_scales, row_w, _, rows_w, _ = terms[0]
        points_x, others_x, points_w, others_w = terms[1]
        m, rank, halvings = extent[0], finals[0], finals[1]
        lane, row, column, turn, a0, b0 = place_thread(ring, uint32(uint32(warp) >> uint32(2)))
        totals, stage, phase, before = nothing(), turn, uint32(0), uint32(0)
        w_scales_at, x_scales_at, row_list = place_scales(ring)
        copy_w_scales(w_scales_at, uint32(rows), w_scales, row_w, rows_w, points_w, others_w, row0, n)
        wait_for_predecessor()
        copy_x_scales(x_scales_at, uint32(columns), x_scales, row_x, rows_x, points_x, others_x, row_list, m)
        commit()
        step = uint32(first + turn)
        while step < last:
            barrier, stage_offset = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
            wait(barrier, phase)
            totals = advance(totals, uint32(a0 + stage_offset), uint32(b0 + stage_offset))
            if before != uint32(0) and lane == uint32(0):
                arrive(before)
            before = uint32(barrier + uint32(8 * stages))
            stage, phase = stride(stage, phase)
            step = uint32(step + uint32(turns))
        totals = drain(totals)
        wait_for_copies()
        send(ring, totals, row, column, turn, rank, halvings)

    return consume


# --- weights: floats or integers ----------------------------------------------------------------


@inlined
def read_words(operands: Any, sizes: Any) -> Any:
    """The words of both operands.

    Maps of codes; scales, with bytes from row to row and column to column, and the rows and steps that share
    one; factors for zero points (rows.ZeroTerms).
    """
    x, w, y, x_scales, row_x, column_x, w_scales, row_w, column_w = operands[:9]
    m, n, steps, _, rows_x, span_x, rows_w, span_w = sizes
    scales = x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w
    return (x, w, uint64(0), uint64(0), uint32(0)), (scales, operands[9:]), y, (m, n), steps


def small_m_weights(variant: SmallMVariant) -> CodeWeights:
    """The weights of a variant's codes."""
    consumer = integer_consumer if variant.integer else float_consumer
    return CodeWeights(variant.frame, partial(consumer, variant), (13, 8), read_words)
