"""The order of the tiles of all experts, for the warp-specialised kernel of cuda:grouped.

This is to the tiles of a plan (groups.py, block_plan.py) what raster.py is to one product. A tile is 128
rows of an expert's weights × a slot of its uses. Those of an expert are computed in sweeps over some slots,
row of tiles after row: tiles that share weights follow each other, and the x_tiles of a sweep stay in the
L2 cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.integers import load16_l2
from ..intrinsics.language import uint32, uint64
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS
from .block_plan import entry_finder
from .groups import HEAD


@cache
def tile_finder() -> Any:
    """The device function for the place of a tile, by a plan in memory or else by the block's own entries.

    ``tile_order``: the plan or 0, the block's entries, the number of experts; tiles of an expert's rows,
    slots of a sweep; the list of uses. It returns the expert, the row of tiles, the slot, its number among
    the expert's slots, and the expert's uses.
    """
    load_words = load16_l2  # blocks that start early have an old first cache
    find_entry = entry_finder()

    @inlined
    def find(tile_order: Any, number: Any) -> Any:
        plan, entries, experts, down, width, _ = tile_order
        any_slot = uint32(number // down)
        if plan != uint64(0):
            v = load_words(plan + uint64(4 * HEAD) + uint64(any_slot) * uint64(16))
            expert, first, slots, uses = uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        else:
            expert, first, slots, uses = find_entry(entries, any_slot, experts)
        sweeps = max(uint32(uint32(slots + uint32(width >> uint32(1))) // width), uint32(1))
        sweep_width = uint32(uint32(uint32(slots + sweeps) - uint32(1)) // sweeps)  # about equal for all
        within, per_sweep = uint32(number - uint32(first * down)), uint32(sweep_width * down)
        sweep = uint32(within // per_sweep)
        within, before = uint32(within - uint32(sweep * per_sweep)), uint32(sweep * sweep_width)
        across = min(sweep_width, uint32(slots - before))
        row = uint32(within // across)
        slot_of_expert = uint32(before + uint32(within - uint32(row * across)))
        return expert, row, uint32(first + slot_of_expert), slot_of_expert, uses

    return find


@cache
def producer_locator() -> Any:
    """The device function for the place of a tile, as the producer needs it: its first fragment row and its
    slot.
    """
    find = tile_finder()

    @inlined
    def locate(tile_order: Any, number: Any) -> Any:
        expert, row, slot, _, _ = find(tile_order, number)
        return uint32(uint32(uint32(expert * tile_order[3]) + row) * uint32(FRAGMENT_ROWS)), slot, uint32(0)

    return locate


def consumer_locator(columns: int) -> Any:
    """The device function for the place of a tile with ``columns`` columns, as consumers need it."""
    find = tile_finder()

    @inlined
    def locate(tile_order: Any, number: Any, thread_at: Any) -> Any:
        (below, column), uses_of_columns = thread_at, tile_order[5]
        _, row, slot, slot_of_expert, uses = find(tile_order, number)
        row, there = uint32(row * uint32(TILE_ROWS) + below), uint32(uses - slot_of_expert * uint32(columns))
        return row, column, there, uses_of_columns + uint64(uint32(slot * uint32(columns))) * uint64(4)

    return locate
