"""The suppliers: all warps beside the consumers, which bring weights and activations into the ring of stages.

Beside wide tiles stands a whole warpgroup: one thread is the producer, the other warps make x_tiles
(late_activations.py). Beside others one thread is the producer, of x_tiles or of plain rows (plain_rows.py).
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from ..packed.layout import PackedLayout
from .late_activations import reorderer
from .plain_rows import plain_producer
from .producer import producer
from .tile import (
    CONSUMER_THREADS,
    CONSUMER_WARPS,
    PRODUCER_REGISTERS,
    WarpSpecializedTile,
)


def supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function of the warps beside the consumers; ``locate``: as in producer.py.

    ``sources``: the map of weights, x_tiles, flags, steps of K, and the height of x_tiles, 0 where there are
    none. ``rows``: x, the kind of its floats, its rows and columns; ``x_map``: its map, of plain rows.
    ``work``: the block's rank, and what schedule/work_units.py says of its work units.
    """
    return _wide_supplier(layout, tile, locate) if tile.wide else _narrow_supplier(layout, tile, locate)


def _narrow_supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    produce, produce_plain = producer(layout, tile, locate, False), plain_producer(layout, tile, locate)

    @inlined
    def supply(
        ring: Any, full: Any, warp: Any, lane: Any, sources: Any, rows: Any, x_map: Any, schedule: Any,
        late: Any, work: Any,
    ) -> None:  # fmt: skip
        fragments, _, _, steps, height = sources
        rank, end, stages_left, whole_tiles = work
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            if height != uint32(0):
                produce(ring, full, sources, schedule, late, rank, end, stages_left, whole_tiles)
            else:
                maps = fragments, x_map
                produce_plain(ring, full, maps, steps, schedule, rank, end, stages_left, whole_tiles)

    return supply


def _wide_supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    produce, reorder_rows = producer(layout, tile, locate, True), reorderer()
    give, columns = barriers.registers("dec", PRODUCER_REGISTERS), tile.columns
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def supply(
        ring: Any, full: Any, warp: Any, lane: Any, sources: Any, rows: Any, x_map: Any, schedule: Any,
        late: Any, work: Any,
    ) -> None:  # fmt: skip
        (_, x_tiles, flags, steps, height), (x, kind, m, k) = sources, rows
        rank, end, stages_left, whole_tiles = work
        give()
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            produce(ring, full, sources, schedule, late, rank, end, stages_left, whole_tiles)
        elif warp > uint32(CONSUMER_WARPS) and late[4] > uint32(0):
            wait_for_predecessor()  # it may have made x
            rows_per_sweep = uint32(schedule[0][1] * uint32(columns))
            reorder_rows(x, x_tiles, flags, late, (kind, m, k, steps, height), rows_per_sweep, lane)

    return supply
