"""Where the tiles of all experts stand, for blocks with roles: cuda:grouped.

What raster.py is for one product, for the tiles of a plan (groups.py, block_plan.py). A tile is 128 rows of an
expert's weights and a slot of its uses. Those of an expert are made in bands of some slots, row of weights by
row: tiles that share weights come one after the other, and the panels of a band stay in the L2 cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.integers import load16_l2
from ..intrinsics.language import uint32, uint64
from ..packed.layout import ROWS, STRIPS
from .block_plan import entry_finder
from .groups import HEAD


@cache
def finder() -> Any:
    """The device function for a tile: of a plan in memory, or of the block's own where there is none.

    ``where``: the plan or 0, the block's entries, how many experts; tiles of an expert's rows, slots of a
    band; the list of uses. Returns the expert, which 128 of its rows, the slot, which of the expert's it is,
    and how many uses the expert has.
    """
    load_words, find_entry = load16_l2, entry_finder()  # blocks that start early have an old cache

    @inlined
    def find(where: Any, number: Any) -> Any:
        plan, entries, experts, down, band, _ = where
        any_slot = uint32(number // down)
        if plan != uint64(0):
            v = load_words(plan + uint64(4 * HEAD) + uint64(any_slot) * uint64(16))
            expert, first, slots, uses = uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        else:
            expert, first, slots, uses = find_entry(entries, any_slot, experts)
        bands = max(uint32(uint32(slots + uint32(band >> uint32(1))) // band), uint32(1))
        wide = uint32(uint32(uint32(slots + bands) - uint32(1)) // bands)  # all about equally
        own, of_band = uint32(number - uint32(first * down)), uint32(wide * down)
        which = uint32(own // of_band)
        own, before = uint32(own - uint32(which * of_band)), uint32(which * wide)
        across = min(wide, uint32(slots - before))
        row = uint32(own // across)
        beside = uint32(before + uint32(own - uint32(row * across)))
        return expert, row, uint32(first + beside), beside, uses

    return find


@cache
def fetched() -> Any:
    """The device function that who fetches asks (warp_specialized/producer.py): a tile's first strip, its part of the panels."""
    find = finder()

    @inlined
    def locate(where: Any, number: Any) -> Any:
        expert, row, slot, _, _ = find(where, number)
        return uint32(uint32(uint32(expert * where[3]) + row) * uint32(STRIPS)), slot, uint32(0)

    return locate


def written(columns: int) -> Any:
    """The device function that who multiplies asks (warp_specialized/consumers.py), of tiles with so many columns."""
    find = finder()

    @inlined
    def locate(where: Any, number: Any, thread_at: Any) -> Any:
        (below, column), of_column = thread_at, where[5]
        _, row, slot, beside, uses = find(where, number)
        row, there = uint32(row * uint32(STRIPS * ROWS) + below), uint32(uses - beside * uint32(columns))
        return row, column, there, of_column + uint64(uint32(slot * uint32(columns))) * uint64(4)

    return locate
