"""The warps that unpack strips and multiply panels, of blocks that take piece after piece: cuda:roles.

Two warpgroups, each 64 rows of weights. While the tensor cores multiply what lies in one set of registers a
record is unpacked into the other; whichever warpgroup is ready has the tensor cores.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..strips.layout import ROWS, StripLayout
from ..words import barrier as barriers
from ..words import warpgroup
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from ..words.thread_sums import thread_sums
from .boxed import follower
from .pieces import end_of, length_of, next_piece
from .product import STRIPS
from .roles import MULTIPLY, RoleTile


@cache
def finisher(tile: RoleTile) -> Any:
    """The device function for what becomes of the sums of a piece: pieces.py."""
    columns, of_slot = tile.columns, 4 * STRIPS * ROWS * tile.columns
    write, keep, plus = thread_sums(columns, tile.loads)
    meet, reach, await_sum = barriers.gather_point(1, MULTIPLY), barriers.reach, barriers.await_sum

    @inlined
    def finish(
        sums: Any, ends: Any, column: Any, row: Any, m: Any, n: Any, first: Any, last: Any, stages: Any,
        share: Any,
    ) -> None:  # fmt: skip
        (y, parts, flags), (rank, sharing, each, extra) = ends, share
        thread = uint32(cuda.threadIdx.x)
        own = parts + uint64(thread) * uint64(16)
        if first > uint32(0):
            keep(sums, own + uint64(rank) * uint64(of_slot), uint32(16 * MULTIPLY))
            meet()
            if thread == uint32(0):
                reach(flags + uint64(rank) * uint64(4), uint32(1))
        else:
            while last < stages:
                rank = uint32(rank + uint32(1))
                last = uint32(last + length_of(rank, sharing, each, extra))
                await_sum(flags + uint64(rank) * uint64(4), uint32(1))
                sums = plus(sums, own + uint64(rank) * uint64(of_slot), uint32(16 * MULTIPLY))
            write(sums, y, column, row, m, n)

    return finish


def adder(layout: StripLayout, tile: RoleTile, unpack: Any, multiply: Any) -> Any:
    """The device function for the sums of stages ``first`` … ``last``.

    Returns them, and the ring's next stage with its parity. A stage is given back once the products after
    its last ones are asked for, for only then are these waited for.
    """
    stages, length, panel, record = tile.stages(layout), tile.stage(layout), tile.panel, layout.record
    single, after, zeros = tile.records == 1, follower(stages), warpgroup.sums(tile.columns).zeros
    of_strips, each = tile.records * panel, tile.records * record
    wait, arrive, wait_for_products = barriers.wait, barriers.arrive, warpgroup.wait

    @inlined
    def add(
        ring: Any, full: Any, warp: Any, lane: Any, stage: Any, phase: Any, first: Any, last: Any, unseen: Any
    ) -> Any:
        even, odd = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        own = uint32(uint32(of_strips) + warp * uint32(each))
        total, before, i = zeros(), uint32(0), first
        at = uint32(ring + stage * uint32(length))
        wait(uint32(full + stage * uint32(8)), phase)
        unpack(uint32(at + own), lane, even, unseen)
        while i < last:
            total = multiply(total, even, at)
            if before != uint32(0) and lane == uint32(0):
                arrive(before)
            if single:
                before = uint32(full + uint32(8 * stages) + stage * uint32(8))
                stage, phase = after(stage, phase)
                at = uint32(ring + stage * uint32(length))
                wait(uint32(full + stage * uint32(8)), phase)
                unpack(uint32(at + own), lane, odd, unseen)
                total = multiply(total, odd, at)
                if lane == uint32(0):
                    arrive(before)
            else:
                unpack(uint32(at + own + uint32(record)), lane, odd, unseen)
                total = multiply(total, odd, uint32(at + uint32(panel)))
            before = uint32(full + uint32(8 * stages) + stage * uint32(8))
            stage, phase = after(stage, phase)
            i, at = uint32(i + uint32(1)), uint32(ring + stage * uint32(length))
            if i < last:
                wait(uint32(full + stage * uint32(8)), phase)
            unpack(uint32(at + own), lane, even, unseen)  # in the end of what is there, for nothing
        wait_for_products()
        if lane == uint32(0):
            arrive(before)
        return total, stage, phase

    return add


def worker(layout: StripLayout, tile: RoleTile, unpack: Any, multiply: Any) -> Any:
    """The device function of these warps; ``unpack`` and ``multiply`` are those of cuda:wgmma."""
    add, finish, columns = adder(layout, tile, unpack, multiply), finisher(tile), tile.columns

    @inlined
    def work(
        ring: Any, full: Any, warp: Any, lane: Any, ends: Any, given: Any, left: Any, whole: Any, share: Any
    ) -> None:
        (m, n, steps, across, tiles), (rank, _, each, extra) = given, share
        stage, phase, unseen = uint32(0), uint32(0), uint32(uint32(steps >> uint32(16)) & uint32(0x8000))
        stages, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        below, beside = uint32(warp * uint32(ROWS) + g), uint32(t << uint32(1))
        while left > uint32(0) or whole < tiles:
            end = end_of(rank, each, extra)
            number, first, last, left, whole = next_piece(left, end, whole, stages, blocks)
            down = uint32(number // across)
            row = uint32(down * uint32(STRIPS * ROWS) + below)
            column = uint32(uint32(number - uint32(down * across)) * uint32(columns) + beside)
            total, stage, phase = add(ring, full, warp, lane, stage, phase, first, last, unseen)
            finish(total, ends, column, row, m, n, first, last, stages, share)

    return work
