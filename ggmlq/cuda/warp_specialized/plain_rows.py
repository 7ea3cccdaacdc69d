"""Plain rows: activations of 16 bits that a product fetches as they lie, without a kernel before.

The copy engine fetches boxes of x, 64 columns of a tile's rows, whose map is a parameter of the kernel. Rows
beyond M and columns beyond K come as zeros. Consumers take weights in the same order (consumers.py).
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from ..machine import tensor_maps
from ..packed import natural
from ..packed.layout import STEP, PackedLayout
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .producer import requester
from .tile import UNIT_FRAGMENTS, WarpSpecializedTile


def reads_plain(layout: PackedLayout, tile: WarpSpecializedTile) -> bool:
    """True where blocks with a tile can read x as it lies; late_activations.py serves wide tiles."""
    return not tile.wide and natural.serves(layout)


def map_words(x: Any, tile: WarpSpecializedTile) -> tuple[int, ...] | None:
    """The words of the map of x behind its address; None where the driver makes no such map."""
    m, k = x.shape
    box = tensor_maps.Box(0, m, k, 2 * k, "bfloat16", tile.columns, STEP)
    return tensor_maps.words_behind_address(box)


def box_requester(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function that requests a stage's boxes of x."""
    length, x_tile_bytes, fragments_each = tile.stage(layout), tile.x_tile_bytes, tile.fragments
    fetch = boxes.fetch

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, x_map: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for fragment in range(fragments_each):
            step = uint32(uint32(i * uint32(fragments_each)) + uint32(fragment))
            fetch(uint32(to + uint32(fragment * x_tile_bytes)), x_map, uint32(step * uint32(STEP)), row, done)

    return request_x


def plain_producer(
    layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, transposed: bool = False
) -> Any:  # fmt: skip
    """The device function of the thread that fetches weights and boxes of x; weights of the first stages
    before the predecessor ends. ``locate``, ``transposed``: as in producer.py.
    """
    stages, columns = tile.stages(layout), tile.columns
    (request_weights, _), request_x = requester(layout, tile, transposed), box_requester(layout, tile)
    stages_per_unit, wait, prefetch = UNIT_FRAGMENTS // tile.fragments, barriers.wait, boxes.prefetch
    after, wait_for_predecessor = stage_advancer(stages), dependent_launch.wait_for_predecessor

    @inlined
    def produce(ring: Any, full: Any, maps: Any, steps: Any, tile_order: Any, work: Any) -> None:
        (fragments, x_map), (next_whole, end, stages_left, whole_tiles) = maps, work
        stage, phase, begun = uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        prefetch(fragments)
        prefetch(x_map)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, _ = locate(tile_order, number)
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
