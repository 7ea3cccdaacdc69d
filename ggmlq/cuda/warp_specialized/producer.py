"""The producer: one thread that lets the copy engine fetch weights and x_tiles into the ring of stages.

x_tiles are contiguous pieces of memory. Weights are boxes of a tensor map with elements of eight bytes.
tile.py has the picture of a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...arrays.array import QuantArray
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import tensor_maps
from ..packed.layout import FRAGMENT_ROWS, PackedLayout
from ..packed.pack import packed_weights
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_work_unit
from .late_activations import section_waiter
from .tile import MAP_ELEMENT, UNIT_FRAGMENTS, X_ROW_BYTES, WarpSpecializedTile


def requester(layout: PackedLayout, tile: WarpSpecializedTile, transposed: bool = False) -> Any:
    """The device functions that request a stage: its weights, announcing the bytes of all of it; and its
    x_tiles.

    ``transposed``: stages follow each other down the rows of weights, and tiles along their columns.
    """
    length, x_tile_bytes, size = tile.stage(layout), tile.x_tile_bytes, tile.size(layout)
    count = tile.boxes(layout)
    box_row, wide, fragments_each = tile.box_row(layout), tile.box_row(layout) // MAP_ELEMENT, tile.fragments
    weights_at = tile.fragments * x_tile_bytes
    expect, fetch, fetch_line = barriers.expect, boxes.fetch, boxes.fetch_line

    @inlined
    def request_weights(ring: Any, full: Any, stage: Any, fragments: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        expect(done, uint32(size))
        if transposed:
            i, row = uint32(row // uint32(FRAGMENT_ROWS)), uint32(i * uint32(FRAGMENT_ROWS))
        for box in range(count):
            column = uint32(uint32(uint32(i * uint32(count)) + uint32(box)) * uint32(wide))
            fetch(
                uint32(to + uint32(weights_at + box * FRAGMENT_ROWS * box_row)), fragments, column, row, done
            )

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, source: Any, apart: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for fragment in range(fragments_each):
            at, x_tile = uint32(to + uint32(fragment * x_tile_bytes)), source + uint64(fragment) * apart
            fetch_line(at, x_tile, uint32(x_tile_bytes), done)

    return request_weights, request_x


def producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, reorders: bool) -> Any:
    """The device function of the producer; it fetches the weights of the first stages before the
    predecessor ends.

    ``locate``: the device function (tile_order, number of a tile) for the tile's first fragment row, its
    column of x_tiles and its raster sweep. ``reorders``: whether other warps of this kernel make x_tiles
    meanwhile (late_activations.py).
    """
    stages, x_tile_bytes, fragments_each = tile.stages(layout), tile.x_tile_bytes, tile.fragments
    (request_weights, request_x), after = requester(layout, tile), stage_advancer(stages)
    wait_for_section = section_waiter(reorders)
    stages_per_unit, wait, prefetch = UNIT_FRAGMENTS // tile.fragments, barriers.wait, boxes.prefetch
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def produce(ring: Any, full: Any, origins: Any, tile_order: Any, late: Any, work: Any) -> None:
        fragments, x_tiles, flags, steps, height = origins
        next_whole, end, stages_left, whole_tiles = work
        stage, phase, begun, ready = uint32(0), uint32(0), uint32(0), late[1]
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        apart = uint64(height) * uint64(X_ROW_BYTES)
        prefetch(fragments)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, sweep = locate(tile_order, number)
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            if number >= whole_tiles:
                ready = late[1]  # the unit may begin within K: its earlier sections were not waited for
            x_tile = (
                x_tiles
                + uint64(uint32(i * uint32(fragments_each))) * apart
                + uint64(column) * uint64(x_tile_bytes)
            )
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, fragments, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it makes x
                at = uint32(0)
                while at < ahead:
                    step = uint32(uint32(i + at) * uint32(fragments_each))
                    ready = wait_for_section(flags, late, sweep, step, ready)
                    request_x(ring, full, at, x_tile, apart)
                    x_tile, at = x_tile + uint64(fragments_each) * apart, uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                request_weights(ring, full, stage, fragments, i, row)
                ready = wait_for_section(flags, late, sweep, uint32(i * uint32(fragments_each)), ready)
                request_x(ring, full, stage, x_tile, apart)
                x_tile, i = x_tile + uint64(fragments_each) * apart, uint32(i + uint32(1))
                stage, phase = after(stage, phase)
        if begun == uint32(0):
            wait_for_predecessor()

    return produce


@cache
def weights_map(box_row: int) -> Callable[[QuantArray], tuple[Any]]:
    """The function that makes the tensor map of an array's packed weights, in boxes of ``box_row`` bytes a
    fragment row.
    """

    def map_weights_at(q: QuantArray) -> tuple[Any]:
        w = packed_weights(q).fragments
        count, steps, fragment_bytes = w.shape
        pitch = steps * fragment_bytes
        box = tensor_maps.Box(
            w.data.ptr,
            count,
            pitch // MAP_ELEMENT,
            pitch,
            "uint64",
            FRAGMENT_ROWS,
            box_row // MAP_ELEMENT,
            False,
        )
        return (tensor_maps.map_array(box),)

    return map_weights_at
