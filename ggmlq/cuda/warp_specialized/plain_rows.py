"""Plain rows: activations of 16 bits that a product fetches as they lie, so that no kernel makes x_tiles before.

Some warps beside the producer copy rows of x into the stages, 16 bytes a lane. Once a stage's bytes are
there they bring each 32 of them into the order of ``wgmma`` (activations/floats.py), in place, and convert
float16 to bfloat16. So the stage holds what x_tiles would:

    copied     step s + AHEAD   s + 2   s + 1       each warp its own rows, so a warp waits for itself alone
    ordered                                     s   then it arrives at the stage's full barrier

The producer brings weights alone. Rows beyond M and columns beyond K come as zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..activations.x_tiles import THREAD_COLUMNS
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, boxes, dependent_launch, integers, ptx, warpgroup
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .tile import CONSUMER_WARPS, MAP_ELEMENT, UNIT_FRAGMENTS, X_ROW_BYTES, WarpSpecializedTile

GROUP_ROWS, GROUP_BYTES = 8, 1024  # rows that a warp orders at one time, 64 columns each
AT_ONCE = 7  # groups that are in registers at one time, at most
IN_FLIGHT = 48 << 10  # bytes of x that a multiprocessor waits for, at least


def row_warps(tile: WarpSpecializedTile) -> int:
    """The warps that copy rows of x; none beside wide tiles, whose activations are x_tiles always."""
    return 0 if tile.wide else 1 if tile.blocks > 1 else 4


def copies_ahead(layout: PackedLayout, tile: WarpSpecializedTile) -> int:
    """Stages that are copied before the first of them is ordered; two ordered ones wait for consumers."""
    wanted = -(-IN_FLIGHT // (tile.blocks * tile.fragments * tile.x_tile_bytes))
    return max(1, min(wanted, tile.stages(layout) - 2))


def barrier_initializer(stages: int, row_warps: int) -> Any:
    """The device function by which one thread makes the barriers; of plain rows each warp arrives, too."""
    init, publish = barriers.init, barriers.publish_barriers

    @inlined
    def start(full: Any, plain: Any) -> None:
        arrivals = uint32(1 + row_warps) if plain else uint32(1)
        for s in range(stages):
            init(uint32(full + uint32(8 * s)), arrivals)
            init(uint32(full + uint32(8 * stages + 8 * s)), uint32(CONSUMER_WARPS))
        publish()

    return start


def weights_producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function of the thread that brings the weights of all work units; ``locate``: as in
    producer.py.
    """
    stages, length, count = tile.stages(layout), tile.stage(layout), tile.boxes(layout)
    box_row, wide = tile.box_row(layout), tile.box_row(layout) // MAP_ELEMENT
    weights_at = tile.fragments * tile.x_tile_bytes
    size, stages_per_unit = tile.size(layout) - weights_at, UNIT_FRAGMENTS // tile.fragments
    expect, fetch, wait, prefetch = barriers.expect, boxes.fetch, barriers.wait, boxes.prefetch
    after = stage_advancer(stages)

    @inlined
    def produce(
        ring: Any, full: Any, fragments: Any, steps: Any, schedule: Any, rank: Any, end: Any,
        stages_left: Any, whole_tiles: Any,
    ) -> None:  # fmt: skip
        stage, phase, next_whole = uint32(0), uint32(0), rank
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        prefetch(fragments)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, _, _ = locate(schedule, number)
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            while i < last:
                done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
                wait(uint32(done + uint32(8 * stages)), uint32(phase ^ uint32(1)))
                expect(done, uint32(size))
                for box in range(count):
                    column = uint32(uint32(uint32(i * uint32(count)) + uint32(box)) * uint32(wide))
                    at = uint32(to + uint32(weights_at + box * FRAGMENT_ROWS * box_row))
                    fetch(at, fragments, column, row, done)
                stage, phase = after(stage, phase)
                i = uint32(i + uint32(1))

    return produce


def stage_copier(tile: WarpSpecializedTile) -> Any:
    """The device function by which a warp starts to copy its rows of a stage; lane = 8 r + c takes chunk c
    of rows r and r + 4 of each group.
    """
    warps, fragments, groups = row_warps(tile), tile.fragments, tile.columns // GROUP_ROWS
    each = groups * fragments // warps  # groups of a warp, those of one fragment after the other
    together = min(each, groups)
    copy16, half = bf16x2.copy16_or_zeros, GROUP_ROWS // 2

    @inlined
    def copy(to: Any, x: Any, warp: Any, lane: Any, first_row: Any, fragment: Any, m: Any, k: Any) -> None:
        first, r, c = uint32(warp * uint32(each)), uint32(lane >> uint32(3)), uint32(lane & uint32(7))
        row = uint32(first_row + uint32(uint32(first % uint32(groups)) * uint32(GROUP_ROWS)) + r)
        fragment = uint32(fragment + uint32(first // uint32(groups)))
        line = uint32(to + uint32(first * uint32(GROUP_BYTES)) + uint32(r * uint32(X_ROW_BYTES)))
        near = uint32(line + uint32(uint32(c ^ r) << uint32(4)))
        far = uint32(line + uint32(half * X_ROW_BYTES) + uint32(uint32(c ^ r ^ uint32(half)) << uint32(4)))
        for part in range(each // together):
            column = uint32(uint32(uint32(fragment + uint32(part)) * uint32(STEP)) + uint32(c << uint32(3)))
            source = x + (uint64(row) * uint64(k) + uint64(column)) * uint64(2)
            for group in range(together):
                at = uint32((part * together + group) * GROUP_BYTES)
                here = uint32(row + uint32(group * GROUP_ROWS))
                size = uint32(16) if here < m and column < k else uint32(0)
                copy16(uint32(near + at), source + uint64(2 * group * GROUP_ROWS) * uint64(k), size)
                size = uint32(16) if uint32(here + uint32(half)) < m and column < k else uint32(0)
                copy16(uint32(far + at), source + uint64(2 * group * GROUP_ROWS + 2 * half) * uint64(k), size)

    return copy


@cache
def bfloat_pair() -> Any:
    """The device function that makes two bfloat16 of two float16."""
    narrow, half = bf16x2.narrowed, ptx.half_value

    @inlined
    def convert(word: Any) -> Any:
        return narrow(half(word & uint32(0xFFFF)), half(word >> uint32(16)))

    return convert


def stage_orderer(tile: WarpSpecializedTile) -> Any:
    """The device function by which a warp orders its rows of a stage; lane = 4 r + q has columns
    16 q … 16 q + 15 of row r of each group.
    """
    each = tile.columns // GROUP_ROWS * tile.fragments // row_warps(tile)
    at_once = max(count for count in range(1, AT_ONCE + 1) if each % count == 0)
    take16, put16, convert = ptx.take16, integers.put16, bfloat_pair()
    words = at_once * THREAD_COLUMNS // 2

    @inlined
    def order(to: Any, warp: Any, lane: Any, halves: Any) -> None:
        r, q = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        line = uint32(to + uint32(warp * uint32(each * GROUP_BYTES)) + uint32(r * uint32(X_ROW_BYTES)))
        even = uint32(line + uint32(uint32(uint32(q << uint32(1)) ^ r) << uint32(4)))
        odd, v = uint32(even ^ uint32(16)), cuda.local.array(words, uint32)
        for begin in range(0, each, at_once):
            for i in range(at_once):
                at = uint32((begin + i) * GROUP_BYTES)
                a, b = take16(uint32(even + at)), take16(uint32(odd + at))
                for t in range(4):
                    v[8 * i + t], v[8 * i + 4 + t] = uint32(a[t]), uint32(b[t])
            if halves:
                for i in range(words):
                    v[i] = convert(v[i])
            for i in range(at_once):
                at, o = uint32((begin + i) * GROUP_BYTES), 8 * i
                put16(uint32(even + at), int32(v[o]), int32(v[o + 2]), int32(v[o + 4]), int32(v[o + 6]))
                put16(uint32(odd + at), int32(v[o + 1]), int32(v[o + 3]), int32(v[o + 5]), int32(v[o + 7]))

    return order


def row_copier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function of the warps that bring the rows of x of all work units.

    Each stage is a group of a lane's copies. Behind the last stage come empty groups, so that the number of
    groups in flight is a constant.
    """
    stages, length, ahead = tile.stages(layout), tile.stage(layout), copies_ahead(layout, tile)
    stages_per_unit, after = UNIT_FRAGMENTS // tile.fragments, stage_advancer(stages)
    columns, fragments_each = tile.columns, tile.fragments
    copy, order = stage_copier(tile), stage_orderer(tile)
    commit, wait_for_copies, wait, arrive = (
        ptx.commit, ptx.wait_for_all_but(ahead), barriers.wait, barriers.arrive
    )  # fmt: skip
    meet, publish = barriers.sync_warp, warpgroup.publish
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def hand_over(ring: Any, full: Any, stage: Any, warp: Any, lane: Any, halves: Any) -> Any:
        wait_for_copies()
        meet()  # the lanes' copies are there for all of the warp
        order(uint32(ring + stage * uint32(length)), warp, lane, halves)
        publish()
        meet()
        if lane == uint32(0):
            arrive(uint32(full + stage * uint32(8)))
        stage, _ = after(stage, uint32(0))
        return stage

    @inlined
    def copy_rows(
        ring: Any, full: Any, warp: Any, lane: Any, x: Any, sizes: Any, schedule: Any, rank: Any, end: Any,
        stages_left: Any, whole_tiles: Any,
    ) -> None:  # fmt: skip
        (halves, m, k, steps), next_whole = sizes, rank
        stage, phase, first, waiting = uint32(0), uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        wait_for_predecessor()  # it may have made x
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            _, column, _ = locate(schedule, number)
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            row = uint32(column * uint32(columns))
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                to = uint32(ring + stage * uint32(length))
                copy(to, x, warp, lane, row, uint32(i * uint32(fragments_each)), m, k)
                commit()
                if waiting == uint32(ahead):
                    first = hand_over(ring, full, first, warp, lane, halves)
                else:
                    waiting = uint32(waiting + uint32(1))
                stage, phase = after(stage, phase)
                i = uint32(i + uint32(1))
        i = uint32(0)
        while i < uint32(ahead):
            commit()
            if waiting == uint32(ahead):
                first = hand_over(ring, full, first, warp, lane, halves)
            else:
                waiting = uint32(waiting + uint32(1))
            i = uint32(i + uint32(1))

    return copy_rows
