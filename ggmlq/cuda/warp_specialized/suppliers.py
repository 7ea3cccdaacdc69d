"""The suppliers: all warps beside the consumers, which bring weights and activations into the ring of stages.

Beside wide tiles stands a whole warpgroup: one thread is the producer, the other warps make x_tiles
(late_activations.py). Beside others one thread is the producer. Where x is read as it lies, further warps
bring its rows (plain_rows.py), and the producer weights alone.
"""

from __future__ import annotations

from typing import Any

from ..epilogue.results import KIND_NUMBERS
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from ..packed.layout import PackedLayout
from .late_activations import reorderer
from .plain_rows import row_copier, weights_producer
from .producer import producer
from .tile import CONSUMER_THREADS, CONSUMER_WARPS, PRODUCER_REGISTERS, WarpSpecializedTile


def supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function of the warps beside the consumers; ``locate``: as in producer.py.

    ``sources``: the map of weights, x_tiles, flags, steps of K, and the height of x_tiles, 0 where there are
    none. ``rows``: x, the kind of its floats, its rows and columns. ``work``: the block's rank, and what
    schedule/work_units.py says of its work units.
    """
    return _wide_supplier(layout, tile, locate) if tile.wide else _narrow_supplier(layout, tile, locate)


def _narrow_supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    produce, produce_weights = producer(layout, tile, locate, False), weights_producer(layout, tile, locate)
    copy_rows, halves = row_copier(layout, tile, locate), KIND_NUMBERS["float16"]

    @inlined
    def supply(
        ring: Any, full: Any, warp: Any, lane: Any, sources: Any, rows: Any, schedule: Any, late: Any,
        work: Any,
    ) -> None:  # fmt: skip
        (fragments, _, _, steps, height), (x, kind, m, k) = sources, rows
        rank, end, stages_left, whole_tiles = work
        if height != uint32(0):
            if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
                produce(ring, full, sources, schedule, late, rank, end, stages_left, whole_tiles)
        elif warp > uint32(CONSUMER_WARPS):
            sizes, number = (kind == uint32(halves), m, k, steps), uint32(warp - uint32(CONSUMER_WARPS + 1))
            copy_rows(ring, full, number, lane, x, sizes, schedule, rank, end, stages_left, whole_tiles)
        elif lane == uint32(0):
            produce_weights(ring, full, fragments, steps, schedule, rank, end, stages_left, whole_tiles)

    return supply


def _wide_supplier(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    produce, reorder_rows = producer(layout, tile, locate, True), reorderer()
    give, columns = barriers.registers("dec", PRODUCER_REGISTERS), tile.columns
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def supply(
        ring: Any, full: Any, warp: Any, lane: Any, sources: Any, rows: Any, schedule: Any, late: Any,
        work: Any,
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
