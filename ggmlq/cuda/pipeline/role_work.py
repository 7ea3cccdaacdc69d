"""The warps that unpack strips and multiply panels, of blocks that take piece after piece: cuda:roles.

Two warpgroups, each 64 rows of weights. While the tensor cores multiply what lies in one set of registers a
record is unpacked into the other, whose words were asked for before; whichever warpgroup is ready has the
tensor cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..strips.layout import ROWS, StripLayout
from ..strips.weights import weights_of
from ..words import barrier as barriers
from ..words import warpgroup
from ..words.atoms import inlined
from ..words.language import cuda, uint32
from .bands import place_of
from .boxed import follower
from .pieces import next_piece
from .product import STRIPS
from .roles import RoleTile
from .shared_tiles import beginner, ender, keeper


def adder(layout: StripLayout, tile: RoleTile, multiply: Any) -> Any:
    """The device function for the sums of stages ``first`` … ``last``.

    Returns them, and the ring's next stage with its parity. Three records are under way: the products of one
    run, the next one is unpacked meanwhile, and the words of the one after that are on their way into
    registers. A stage is given back once the products after its last ones are asked for, for only then are
    these waited for.
    """
    stages, length, panel = tile.stages(layout), tile.stage(layout), tile.panel
    single, after, sums = tile.records == 1, follower(stages), warpgroup.sums(tile.columns)
    of_strips, each, second = tile.records * panel, tile.line(layout), tile.next_record(layout)
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, warpgroup.wait
    count, load, unpack, shrunk = weights_of(layout)
    zeros, times, shrunk, shrinks = sums.zeros, sums.times, np.float32(shrunk), shrunk != 1

    @inlined
    def add(
        ring: Any, full: Any, warp: Any, lane: Any, stage: Any, phase: Any, first: Any, last: Any, unseen: Any
    ) -> Any:
        even, odd, words = (
            cuda.local.array(16, uint32), cuda.local.array(16, uint32), cuda.local.array(count, uint32),
        )  # fmt: skip
        own = uint32(uint32(of_strips) + warp * uint32(each))
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * uint32(length))
        wait(uint32(full + stage * uint32(8)), phase)
        load(uint32(at + own), lane, words)
        unpack(words, even, unseen)
        while i < last:
            here, empty = at, uint32(full + uint32(8 * stages) + stage * uint32(8))
            if single:
                stage, phase = after(stage, phase)
                at = uint32(ring + stage * uint32(length))
                wait(uint32(full + stage * uint32(8)), phase)
                load(uint32(at + own), lane, words)
            else:
                load(uint32(at + own + uint32(second)), lane, words)
            total = multiply(total, even, here)
            if before != uint32(0) and lane == uint32(0):
                arrive(before)
            unpack(words, odd, unseen)
            here, before = at if single else uint32(at + uint32(panel)), empty
            if single:
                empty = uint32(full + uint32(8 * stages) + stage * uint32(8))
            stage, phase = after(stage, phase)
            i, at = uint32(i + uint32(1)), uint32(ring + stage * uint32(length))
            if i < last:
                wait(uint32(full + stage * uint32(8)), phase)
            load(uint32(at + own), lane, words)  # in the end what is there, for nothing
            total = multiply(total, odd, here)
            if single and lane == uint32(0):
                arrive(before)
            before = empty
            unpack(words, even, unseen)
        wait_for_products()
        if lane == uint32(0):
            arrive(before)
        if shrinks:
            total = times(total, shrunk)
        return total, stage, phase

    return add


def worker(layout: StripLayout, tile: RoleTile, multiply: Any) -> Any:
    """The device function of these warps; ``multiply`` is that of cuda:wgmma."""
    add, put, close = adder(layout, tile, multiply), keeper(tile), ender(tile)
    begin, columns, behind = beginner(), tile.columns, tile.stages(layout) * 16

    @inlined
    def work(
        ring: Any, full: Any, warp: Any, lane: Any, ends: Any, given: Any, end: Any, left: Any, wholes: Any,
        rank: Any, pieces: Any,
    ) -> None:  # fmt: skip
        (m, n, steps, order), share, whole = given, (rank, pieces[1], pieces[0]), rank
        stage, phase, unseen = uint32(0), uint32(0), uint32(uint32(steps >> uint32(16)) & uint32(0x8000))
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        below, beside = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        notes = uint32(full + uint32(behind))
        begin(ends[2], share)
        while left > uint32(0) or whole < wholes:
            number, first, last, left, whole = next_piece(left, end, whole, stages, blocks, wholes)
            down, over = place_of(number, order)
            row = uint32(down * uint32(STRIPS * ROWS) + below)
            column = uint32(over * uint32(columns) + beside)
            total, stage, phase = add(ring, full, warp, lane, stage, phase, first, last, unseen)
            put(total, ends, uint32(number - wholes), column, row, m, n, first, last, stages, share, notes)
        close(ends, below, beside, m, n, order, stages, share, pieces, wholes, notes)

    return work
