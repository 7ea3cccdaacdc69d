"""Plain rows: activations of 16 bits that a product fetches as they lie: no kernel before makes x_tiles.

The copy engine fetches boxes of x, 64 columns of a tile's rows, whose map is a parameter of the kernel. Once
a box is there some warps beside the producer bring each 32 bytes into the order of ``wgmma``
(activations/floats.py), in place, and convert float16 to bfloat16. So the stage holds what x_tiles would:

    barriers   there [stages]   the boxes of x, by their bytes
               full [stages]    the weights, by their bytes; and each warp that orders, when it has done so

Rows beyond M and columns beyond K come as zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..activations.x_tiles import THREAD_COLUMNS
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, boxes, dependent_launch, integers, ptx, warpgroup
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32
from ..machine import tensor_maps
from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .tile import CONSUMER_WARPS, MAP_ELEMENT, SCRATCH, UNIT_FRAGMENTS, X_ROW_BYTES, WarpSpecializedTile

GROUP_ROWS, GROUP_BYTES = 8, 1024  # rows that a warp orders at one time, 64 columns each
AT_ONCE = 7  # groups that are in registers at one time, at most


def ordering_warps(tile: WarpSpecializedTile) -> int:
    """The warps that order rows of x; none beside wide tiles, whose activations are x_tiles always."""
    return 0 if tile.wide else 1 if tile.blocks > 1 else 4


def shared(layout: PackedLayout, tile: WarpSpecializedTile) -> int:
    """Bytes of shared memory, with the barriers of boxes behind the scratch words."""
    return tile.shared(layout) + 8 * tile.stages(layout)


def map_words(x: Any, kind: str, tile: WarpSpecializedTile) -> tuple[int, ...] | None:
    """The words of the map of x behind its address; None where the driver makes no such map."""
    (m, k), size = x.shape, x.dtype.itemsize
    box = tensor_maps.Box(0, m, k, size * k, kind, tile.columns, STEP)
    return tensor_maps.words_behind_address(box)


def barrier_initializer(stages: int, ordering_warps: int) -> Any:
    """The device function by which one thread makes the barriers; with plain rows full ones count the warps
    that order, too.
    """
    init, publish = barriers.init, barriers.publish_barriers

    @inlined
    def start(full: Any, plain: Any) -> None:
        arrivals = uint32(1 + ordering_warps) if plain else uint32(1)
        for s in range(stages):
            init(uint32(full + uint32(8 * s)), arrivals)
            init(uint32(full + uint32(8 * stages + 8 * s)), uint32(CONSUMER_WARPS))
            if ordering_warps:
                init(uint32(full + uint32(16 * stages + SCRATCH + 8 * s)), uint32(1))
        publish()

    return start


def requester(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device functions that request a stage's weights, and its boxes of x."""
    stages, length, count = tile.stages(layout), tile.stage(layout), tile.boxes(layout)
    box_row, wide = tile.box_row(layout), tile.box_row(layout) // MAP_ELEMENT
    x_tile_bytes, fragments_each = tile.x_tile_bytes, tile.fragments
    weights_at = fragments_each * x_tile_bytes
    size, there = tile.size(layout) - weights_at, 16 * stages + SCRATCH
    expect, fetch = barriers.expect, boxes.fetch

    @inlined
    def request_weights(ring: Any, full: Any, stage: Any, fragments: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        expect(done, uint32(size))
        for box in range(count):
            column = uint32(uint32(uint32(i * uint32(count)) + uint32(box)) * uint32(wide))
            at = uint32(to + uint32(weights_at + box * FRAGMENT_ROWS * box_row))
            fetch(at, fragments, column, row, done)

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, x_map: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + uint32(there) + stage * uint32(8)), uint32(ring + stage * uint32(length))
        expect(done, uint32(weights_at))
        for fragment in range(fragments_each):
            step = uint32(uint32(i * uint32(fragments_each)) + uint32(fragment))
            fetch(uint32(to + uint32(fragment * x_tile_bytes)), x_map, uint32(step * uint32(STEP)), row, done)

    return request_weights, request_x


def plain_producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function of the thread that fetches weights and boxes of x; weights of the first stages
    before the predecessor ends. ``locate``: as in producer.py.
    """
    stages, columns = tile.stages(layout), tile.columns
    (request_weights, request_x), after = requester(layout, tile), stage_advancer(stages)
    stages_per_unit, wait, prefetch = UNIT_FRAGMENTS // tile.fragments, barriers.wait, boxes.prefetch
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def produce(
        ring: Any, full: Any, maps: Any, steps: Any, schedule: Any, rank: Any, end: Any, stages_left: Any,
        whole_tiles: Any,
    ) -> None:  # fmt: skip
        (fragments, x_map), next_whole = maps, rank
        stage, phase, begun = uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        prefetch(fragments)
        prefetch(x_map)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, _ = locate(schedule, number)
            x_row = uint32(column * uint32(columns))
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, fragments, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it may have made x
                at = uint32(0)
                while at < ahead:
                    request_x(ring, full, at, x_map, uint32(i + at), x_row)
                    at = uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                request_weights(ring, full, stage, fragments, i, row)
                request_x(ring, full, stage, x_map, i, x_row)
                stage, phase = after(stage, phase)
                i = uint32(i + uint32(1))
        if begun == uint32(0):
            wait_for_predecessor()

    return produce


@cache
def bfloat_pair() -> Any:
    """The device function that makes two bfloat16 of two float16."""
    narrow, half = bf16x2.narrowed, ptx.half_value

    @inlined
    def convert(word: Any) -> Any:
        return narrow(half(word & uint32(0xFFFF)), half(word >> uint32(16)))

    return convert


def stage_orderer(tile: WarpSpecializedTile) -> Any:
    """The device function by which a warp orders its rows of a stage.

    lane = 4 r + q has columns 16 q … 16 q + 15 of row r of each group.
    """
    each = tile.columns // GROUP_ROWS * tile.fragments // ordering_warps(tile)
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


def orderer(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function of the warps that order boxes of x, stage after stage."""
    stages, length, order = tile.stages(layout), tile.stage(layout), stage_orderer(tile)
    after, there = stage_advancer(stages), 16 * stages + SCRATCH
    wait, arrive, meet, publish = barriers.wait, barriers.arrive, barriers.sync_warp, warpgroup.publish

    @inlined
    def order_boxes(ring: Any, full: Any, warp: Any, lane: Any, halves: Any, count: Any) -> None:
        stage, phase = uint32(0), uint32(0)
        while count > uint32(0):
            wait(uint32(full + uint32(there) + stage * uint32(8)), phase)
            order(uint32(ring + stage * uint32(length)), warp, lane, halves)
            publish()
            meet()
            if lane == uint32(0):
                arrive(uint32(full + stage * uint32(8)))
            stage, phase = after(stage, phase)
            count = uint32(count - uint32(1))

    return order_boxes
