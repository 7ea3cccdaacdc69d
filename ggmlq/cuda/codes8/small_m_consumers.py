"""The consumer warps of products of few rows (small_m.py): they multiply full stages and send the sums."""

from __future__ import annotations

from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from ..intrinsics.promoted import float_products
from ..intrinsics.wgmma8 import LOW, STEP, unpromoted_products
from ..rings.boxed import stage_advancer
from .small_m import (
    CONSUMER_THREADS,
    CONSUMER_WARPGROUPS,
    SmallMTile,
    SmallMVariant,
    integer_scale_copier,
    producer,
    scale_copier,
)  # fmt: skip
from .small_m_sums import sum_exchanger


def specialized_block(variant: SmallMVariant) -> Any:
    """The device function of a block: two threads produce, two warpgroups consume and exchange their sums.

    When it ends, all sums have arrived at the blocks that add them up. ``row_x``: the first row of x, or the
    address of a list of rows; ``rows``: the rows to fetch, of which ``m`` exist; ``row_w`` to ``end_w``: the
    rows of w; ``arguments``, ``zeros``: addresses of scales and of zero points.
    """
    produce_w, produce_x = producer(variant.tile, True), producer(variant.tile, False, variant.listed)
    consume = integer_consumer(variant) if variant.integer else float_consumer(variant)
    first_lane, sync_warp, wait_for_cluster = (
        barriers.from_first_lane,
        barriers.sync_warp,
        barriers.wait_for_cluster,
    )
    sync_cluster = barriers.sync_cluster

    @inlined
    def run(
        ring: Any, full: Any, x: Any, w: Any, row_x: Any, rows: Any, m: Any, row_w: Any, end_w: Any,
        steps: Any, arguments: Any, zeros: Any, rank: Any, halvings: Any,
    ) -> None:  # fmt: skip
        first = uint32(uint32(rank * steps) >> halvings)
        last = uint32(uint32(uint32(rank + uint32(1)) * steps) >> halvings)
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        if uint32(warp) >= uint32(4 * CONSUMER_WARPGROUPS):
            if thread == uint32(CONSUMER_THREADS):
                produce_w(ring, full, w, row_w, first, last, rows)
            if thread == uint32(CONSUMER_THREADS + 32):
                produce_x(ring, full, x, row_x, first, last, rows)
            sync_warp()
            if halvings != uint32(0):
                wait_for_cluster()
        else:
            group = uint32(uint32(warp) >> uint32(2))
            consume(ring, full, arguments, zeros, group, row_w, first, last, m, end_w, rank, halvings)
        sync_cluster()

    return run


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


def stage_strider(tile: SmallMTile) -> Any:
    """The device function that gives the stage and the parity of a warpgroup's next step."""
    after, turns = stage_advancer(tile.stages), tile.turns

    @inlined
    def stride(stage: Any, phase: Any) -> Any:
        for _ in range(turns):
            stage, phase = after(stage, phase)
        return stage, phase

    return stride


def float_consumer(variant: SmallMVariant) -> Any:
    """The device function of consumer warps for floats: sums are promoted, then sent to the blocks that
    finish them.
    """
    tile = variant.tile
    stages, length, columns, chunk = tile.stages, tile.stage // 16, tile.columns, tile.chunk
    scales_offset, x_scales_offset, exchange = tile.scales, tile.scales_of_x, sum_exchanger(variant)
    zeros, nothing, begin, first_products, _, _, _, factors, promote, unscaled = float_products(
        variant.form, 0
    )
    row_factors, promoted = factors[0], promote[0]
    rows, turns, place_thread, stride = tile.rows, tile.turns, thread_placer(tile), stage_strider(tile)
    copy_w_scales, copy_x_scales = scale_copier(rows), scale_copier(columns, variant.listed)
    listed = tile.row_list if variant.listed else 0
    meet, wait, arrive = barriers.named_barrier(1, CONSUMER_THREADS), barriers.wait, barriers.arrive
    wait_for_predecessor, commit, wait_for_copies = (
        dependent_launch.wait_for_predecessor, ptx.commit, ptx.wait_for_all_but(0),
    )  # fmt: skip

    @inlined
    def consume(
        ring: Any, full: Any, arguments: Any, _: Any, group: Any, row0: Any, first: Any, last: Any,
        m: Any, n: Any, rank: Any, halvings: Any,
    ) -> None:  # fmt: skip
        x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w = arguments
        lane, row, column, turn, a0, b0 = place_thread(ring, group)
        w_scales_at, x_scales_at = (
            uint32(ring + uint32(scales_offset)),
            uint32(ring + uint32(x_scales_offset)),
        )
        row_list = uint32(ring + uint32(listed)) if listed else uint32(0)
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
        exchange(ring, totals, row, column, turn, rank, halvings)

    return consume


def integer_consumer(variant: SmallMVariant) -> Any:
    """The device function of consumer warps for integers, whose sums are exact."""
    tile = variant.tile
    stages, length, columns = tile.stages, tile.stage // 16, tile.columns
    scales_offset, x_scales_offset = tile.scales, tile.scales_of_x
    nothing, advance, drain = unpromoted_products(variant.form)
    rows, turns, place_thread, stride = tile.rows, tile.turns, thread_placer(tile), stage_strider(tile)
    exchange, copy_w_scales = sum_exchanger(variant), integer_scale_copier(variant.zeros)
    copy_x_scales, listed = (
        integer_scale_copier(variant.zeros, variant.listed),
        tile.row_list if variant.listed else 0,
    )
    wait, arrive, wait_for_predecessor = barriers.wait, barriers.arrive, dependent_launch.wait_for_predecessor
    commit, wait_for_copies = ptx.commit, ptx.wait_for_all_but(0)

    @inlined
    def consume(
        ring: Any, full: Any, arguments: Any, zeros: Any, group: Any, row0: Any, first: Any, last: Any,
        m: Any, n: Any, rank: Any, halvings: Any,
    ) -> None:  # fmt: skip
        x_scales, row_x, _, rows_x, _, w_scales, row_w, _, rows_w, _ = arguments
        points_x, others_x, points_w, others_w = zeros
        lane, row, column, turn, a0, b0 = place_thread(ring, group)
        totals, stage, phase, before = nothing(), turn, uint32(0), uint32(0)
        w_scales_at, x_scales_at = (
            uint32(ring + uint32(scales_offset)),
            uint32(ring + uint32(x_scales_offset)),
        )
        row_list = uint32(ring + uint32(listed)) if listed else uint32(0)
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
        exchange(ring, totals, row, column, turn, rank, halvings)

    return consume
