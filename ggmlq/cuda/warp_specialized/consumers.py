"""The warps that unpack strips and multiply panels, of blocks that take piece after piece: cuda:warp_specialized.

Two warpgroups, each 64 rows of weights. While the tensor cores multiply what lies in one set of registers a
record is unpacked into the other, whose words were asked for before; whichever warpgroup is ready has the
tensor cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..epilogue import listed_rows
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import warpgroup
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from ..packed.layout import ROWS, StripLayout
from ..packed.weights import weights_of
from ..rings.boxed import stage_advancer
from ..schedule.work_units import next_piece
from .producer import RoleTile
from .stream_k import Sharing, sharing_of


def adder(layout: StripLayout, tile: RoleTile, multiply: Any) -> Any:
    """The device function for the sums of stages ``first`` … ``last``.

    Returns them, and the ring's next stage with its parity. Three records are under way: the products of one
    run, the next one is unpacked meanwhile, and the words of the one after that are on their way into
    registers. A stage is given back once the products after its last ones are asked for, for only then are
    these waited for.
    """
    stages, length, panel = tile.stages(layout), tile.stage(layout), tile.panel
    single, after, sums = tile.records == 1, stage_advancer(stages), warpgroup.sums(tile.columns)
    of_strips, each, second = tile.records * panel, tile.line(layout), tile.next_record(layout)
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, warpgroup.wait
    count, load, unpack, factor = weights_of(layout)
    zeros, times, shrunk, shrinks = sums.zeros, sums.times, np.float32(factor), factor != 1

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


@inlined
def as_given(pieces: Any, notes: Any) -> Any:
    """How tiles are shared out, where the host says so: schedule/work_units.py's Shares, and how many come before."""
    return pieces


def worker(
    layout: StripLayout, tile: RoleTile, multiply: Any, locate: Any, shares: Any = as_given,
    listed: bool = False, way: Sharing | None = None,
) -> Any:  # fmt: skip
    """The device function of these warps; ``multiply`` is that of cuda:wgmma.

    ``locate``: the device function (where, number of a tile, thread_at) for a thread's place in the results:
    row of weights, column, how many columns there are, and, if ``listed``, the list of the rows of y that
    columns go to. ``thread_at``: the thread's own row and column in a tile. ``shares``: (pieces, notes) for
    how tiles are shared out; it is asked anew each time, so no register holds that while there are products.
    ``way``: what blocks do that share a tile.
    """
    add, (begin, keep, close) = adder(layout, tile, multiply), way or sharing_of(tile, locate, listed)
    behind, write = tile.stages(layout) * 16, thread_sums(tile.columns).write
    hold, scatter = listed_rows.holder(tile.columns), listed_rows.scatterer(tile.columns)

    @inlined
    def work(
        ring: Any, full: Any, warp: Any, lane: Any, ends: Any, where: Any, given: Any, end: Any, left: Any,
        rank: Any, pieces: Any,
    ) -> None:  # fmt: skip
        (n, steps), whole, y, notes = given, rank, ends[0], uint32(full + uint32(behind))
        stage, phase, unseen = uint32(0), uint32(0), uint32(uint32(steps >> uint32(16)) & uint32(0x8000))
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        thread_at = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        divided, sharing, _, _, _, wholes = shares(pieces, notes)
        begin(ends[2], (rank, sharing, divided))
        while left > uint32(0) or whole < wholes:
            number, first, last, left, whole = next_piece(left, end, whole, stages, blocks, wholes)
            row, column, limit, of_column = locate(where, number, thread_at)
            if listed:
                rows_of_y = hold(of_column, lane, limit)
            total, stage, phase = add(ring, full, warp, lane, stage, phase, first, last, unseen)
            divided, sharing, _, _, _, wholes = shares(pieces, notes)
            if first > uint32(0) or last < stages:
                share = rank, sharing, divided
                keep(total, ends[1], ends[2], uint32(number - wholes), first, share, notes)
            elif listed:
                scatter(total, y, rows_of_y, column, row, n)
            else:
                write(total, y, column, row, limit, n)
        divided, sharing, parts, each, extra, wholes = shares(pieces, notes)
        share, pieces = (rank, sharing, divided), (divided, sharing, parts, each, extra)
        close(ends, where, thread_at, n, stages, share, pieces, wholes, notes)

    return work
