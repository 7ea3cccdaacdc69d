"""Plain rows: activations of 16 bits that a product fetches as they lie, without a kernel before.

Of dense products the copy engine fetches boxes of x, 64 columns of a tile's rows, whose map is a parameter of
the kernel. Rows beyond M and columns beyond K come as zeros. Rows of experts come one by one (use_rows.py).
Consumers take weights in the order of the rows (consumers.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class RowFetcher(NamedTuple):
    """Device functions that fetch a stage."""

    begin: Any  # (fragments, x)
    place: Any  # (column): the place of a tile's rows, by the column that its locator gives
    rows: Any  # (x, place): the rows, where the predecessor has ended
    request_weights: Any  # (ring, full, stage, fragments, i, row)
    request_x: Any  # (ring, full, stage, x, i, rows)


def box_fetcher(layout: PackedLayout, tile: WarpSpecializedTile) -> RowFetcher:
    """The functions of a thread that fetches boxes of x, whose map it takes."""
    length, x_tile_bytes, fragments_each = tile.stage(layout), tile.x_tile_bytes, tile.fragments
    fetch, prefetch, columns = boxes.fetch, boxes.prefetch, tile.columns

    @inlined
    def begin(fragments: Any, x_map: Any) -> None:
        prefetch(fragments)
        prefetch(x_map)

    @inlined
    def first_row(column: Any) -> Any:
        return uint32(column * uint32(columns))

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, x_map: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for fragment in range(fragments_each):
            step = uint32(uint32(i * uint32(fragments_each)) + uint32(fragment))
            fetch(uint32(to + uint32(fragment * x_tile_bytes)), x_map, uint32(step * uint32(STEP)), row, done)

    rows = inlined(lambda x_map, row: row)
    return RowFetcher(begin, first_row, rows, requester(layout, tile)[0], request_x)


def row_producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, fetcher: RowFetcher) -> Any:
    """The device function of the threads that fetch weights and rows of x; weights of the first stages before
    the predecessor ends. ``locate``: as in producer.py.
    """
    stages, (begin, place_of, rows_of, request_weights, request_x) = tile.stages(layout), fetcher
    stages_per_unit, wait = UNIT_FRAGMENTS // tile.fragments, barriers.wait
    after, wait_for_predecessor = stage_advancer(stages), dependent_launch.wait_for_predecessor

    @inlined
    def produce(
        ring: Any, full: Any, sources: Any, steps: Any, schedule: Any, rank: Any, end: Any, stages_left: Any,
        whole_tiles: Any,
    ) -> None:  # fmt: skip
        (fragments, x), next_whole = sources, rank
        stage, phase, begun = uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        begin(fragments, x)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, _ = locate(schedule, number)
            place = place_of(column)
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, fragments, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it may have made x, or the list of its rows
                rows, at = rows_of(x, place), uint32(0)
                while at < ahead:
                    request_x(ring, full, at, x, uint32(i + at), rows)
                    at = uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            else:
                rows = rows_of(x, place)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                request_weights(ring, full, stage, fragments, i, row)
                request_x(ring, full, stage, x, i, rows)
                stage, phase = after(stage, phase)
                i = uint32(i + uint32(1))
        if begun == uint32(0):
            wait_for_predecessor()

    return produce
