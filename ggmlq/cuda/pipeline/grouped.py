"""Blocks with roles for the tiles of all experts: cuda:grouped.

What roles.py and role_work.py are for one product, over the tiles of a plan (groups.py). A tile is 128 rows
of an expert's weights and a slot of its uses; those of one expert that share weights come one after the
other. Blocks take tiles in turns, from first to last column of the weights: with many experts there are
more tiles than blocks, and what is left for the last turn is small.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..strips.layout import ROWS, StripLayout
from ..words import barrier as barriers
from ..words import codes, early_start
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from ..words.scattered import scatterer
from .boxed import follower
from .groups import HEAD
from .own_plan import entry_finder
from .product import STRIPS
from .role_work import adder
from .roles import LINE, PIECE, RoleTile, asker


@cache
def finder() -> Any:
    """The device function for a tile: of a plan in memory, or of the block's own where there is none.

    Returns the expert, which 128 of its rows, the slot, and how many uses there are from its first column on.
    """
    load_words, find_entry = codes.load_words, entry_finder()

    @inlined
    def find(where: Any, number: Any, down: Any, columns: Any) -> Any:
        plan, entries, experts = where
        any_slot = uint32(number // down)
        if plan != uint64(0):
            v = load_words(plan + uint64(4 * HEAD) + uint64(any_slot) * uint64(16))
            expert, first, slots, uses = uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        else:
            expert, first, slots, uses = find_entry(entries, any_slot, experts)
        own = uint32(number - uint32(first * down))
        row = uint32(own // slots)
        beside = uint32(own - uint32(row * slots))
        return expert, row, uint32(first + beside), uint32(uses - uint32(beside * columns))

    return find


@cache
def filler(layout: StripLayout, tile: RoleTile) -> Any:
    """The device function of the one thread that fetches, stage by stage over the ends of tiles.

    Weights of the first stages it asks for before the predecessor ends, which makes panels.
    """
    stages, panel, records_each, columns = tile.stages(layout), tile.panel, tile.records, tile.columns
    (ask_w, ask_x), after, find = asker(layout, tile), follower(stages), finder()
    wait, wait_for_predecessor = barriers.wait, early_start.wait_for_predecessor

    @inlined
    def fill(ring: Any, full: Any, given: Any, tiles: Any) -> None:
        records, panels, where, steps, height, down = given
        stage, phase, number, begun = uint32(0), uint32(0), uint32(cuda.blockIdx.x), uint32(0)
        line, last = uint64(height) * uint64(LINE), uint32(steps // uint32(records_each))
        while number < tiles:
            expert, row, slot, _ = find(where, number, down, uint32(columns))
            strip = uint32(uint32(uint32(expert * down) + row) * uint32(STRIPS))
            of_x, i = panels + uint64(slot) * uint64(panel), uint32(0)
            if begun == uint32(0):
                begun, ahead = uint32(1), min(last, uint32(stages))
                for at in range(ahead):
                    ask_w(ring, full, uint32(at), records, uint32(at), strip)
                wait_for_predecessor()
                for at in range(ahead):
                    ask_x(ring, full, uint32(at), of_x, line)
                    of_x = of_x + uint64(records_each) * line
                i, stage = ahead, ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                ask_w(ring, full, stage, records, i, strip)
                ask_x(ring, full, stage, of_x, line)
                of_x, i = of_x + uint64(records_each) * line, uint32(i + uint32(1))
                stage, phase = after(stage, phase)
            number = uint32(number + uint32(cuda.gridDim.x))
        if begun == uint32(0):
            wait_for_predecessor()

    return fill


def worker(layout: StripLayout, tile: RoleTile, multiply: Any) -> Any:
    """The device function of the warps that multiply; ``multiply`` is that of cuda:wgmma."""
    add, columns, find = adder(layout, tile, multiply), tile.columns, finder()
    scatter, wait_for_predecessor = scatterer(tile.columns), early_start.wait_for_predecessor

    @inlined
    def work(ring: Any, full: Any, warp: Any, lane: Any, ends: Any, given: Any, tiles: Any) -> None:
        (y, where, of_column), (n, steps, down) = ends, given
        stage, phase, unseen = uint32(0), uint32(0), uint32(uint32(steps >> uint32(16)) & uint32(0x8000))
        number, stages = uint32(cuda.blockIdx.x), uint32(steps // uint32(PIECE))
        below = uint32(warp * uint32(ROWS) + uint32(lane >> uint32(2)))
        beside = uint32(uint32(lane & uint32(3)) << uint32(1))
        while number < tiles:
            total, stage, phase = add(ring, full, warp, lane, stage, phase, uint32(0), stages, unseen)
            wait_for_predecessor()  # long over: it wrote the uses of columns
            _, row, slot, count = find(where, number, down, uint32(columns))
            row, uses = uint32(row * uint32(STRIPS * ROWS) + below), uint64(uint32(slot * uint32(columns)))
            scatter(total, y, of_column + uses * uint64(4), beside, count, row, n)
            number = uint32(number + uint32(cuda.gridDim.x))

    return work
