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
from ..words import boxes, codes
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from ..words.scattered import scatterer
from .boxed import follower
from .groups import HEAD
from .product import STRIPS
from .role_work import adder
from .roles import LINE, PIECE, WIDE, RoleTile


@cache
def finder() -> Any:
    """The device function for a tile of a plan.

    Returns the expert, which 128 of its rows, the slot, and how many uses there are from its first column on.
    """
    load_words = codes.load_words

    @inlined
    def find(plan: Any, number: Any, down: Any, columns: Any) -> Any:
        v = load_words(plan + uint64(4 * HEAD) + uint64(uint32(number // down)) * uint64(16))
        own = uint32(number - uint32(v[1] * down))
        row = uint32(own // v[2])
        beside = uint32(own - uint32(row * v[2]))
        return v[0], row, uint32(v[1] + beside), uint32(v[3] - uint32(beside * columns))

    return find


@cache
def filler(layout: StripLayout, tile: RoleTile) -> Any:
    """The device function of the one thread that fetches, stage by stage over the ends of tiles."""
    stages, length, panel, size = tile.stages(layout), tile.stage(layout), tile.panel, tile.size(layout)
    records_each, after, boxes_each = tile.records, follower(stages), tile.boxes(layout)
    of_weights, line, columns, find = tile.records * panel, tile.line(layout), tile.columns, finder()
    expect, wait, fetch, fetch_line = barriers.expect, barriers.wait, boxes.fetch, boxes.fetch_line

    @inlined
    def fill(ring: Any, full: Any, given: Any, tiles: Any) -> None:
        records, panels, plan, steps, height, down = given
        stage, phase, number = uint32(0), uint32(0), uint32(cuda.blockIdx.x)
        apart, last = uint64(height) * uint64(LINE), uint32(steps // uint32(records_each))
        while number < tiles:
            expert, row, slot, _ = find(plan, number, down, uint32(columns))
            strip = uint32(uint32(uint32(expert * down) + row) * uint32(STRIPS))
            of_x, i = panels + uint64(slot) * uint64(panel), uint32(0)
            while i < last:
                done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
                wait(uint32(done + uint32(8 * stages)), uint32(phase ^ uint32(1)))
                expect(done, uint32(size))
                for box in range(boxes_each):
                    column = uint32(uint32(i * uint32(boxes_each) + uint32(box)) * uint32(line // WIDE))
                    there = uint32(to + uint32(of_weights + box * STRIPS * line))
                    fetch(there, records, column, strip, done)
                for record in range(records_each):
                    fetch_line(uint32(to + uint32(record * panel)), of_x, uint32(panel), done)
                    of_x = of_x + apart
                i, (stage, phase) = uint32(i + uint32(1)), after(stage, phase)
            number = uint32(number + uint32(cuda.gridDim.x))

    return fill


def worker(layout: StripLayout, tile: RoleTile, unpack: Any, multiply: Any) -> Any:
    """The device function of the warps that multiply; ``unpack`` and ``multiply`` are those of cuda:wgmma."""
    add, columns, find = adder(layout, tile, unpack, multiply), tile.columns, finder()
    scatter = scatterer(tile.columns)

    @inlined
    def work(ring: Any, full: Any, warp: Any, lane: Any, ends: Any, given: Any, tiles: Any) -> None:
        (y, plan, of_column), (n, steps, down) = ends, given
        stage, phase, unseen = uint32(0), uint32(0), uint32(uint32(steps >> uint32(16)) & uint32(0x8000))
        number, stages = uint32(cuda.blockIdx.x), uint32(steps // uint32(PIECE))
        below = uint32(warp * uint32(ROWS) + uint32(lane >> uint32(2)))
        beside = uint32(uint32(lane & uint32(3)) << uint32(1))
        while number < tiles:
            total, stage, phase = add(ring, full, warp, lane, stage, phase, uint32(0), stages, unseen)
            _, row, slot, count = find(plan, number, down, uint32(columns))
            row, uses = uint32(row * uint32(STRIPS * ROWS) + below), uint64(uint32(slot * uint32(columns)))
            scatter(total, y, of_column + uses * uint64(4), beside, count, row, n)
            number = uint32(number + uint32(cuda.gridDim.x))

    return work
