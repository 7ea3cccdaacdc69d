"""Tiles that several blocks share: each keeps the sums of its steps, and each finishes a slice of the tile.

    block      r             r + 1         r + 2
    keeps      its sums, and raises its flag
    finishes   first third   second third  last third     of each thread's sums, parts in the order of blocks

So no block adds up much, and a result does not depend on who was there first. A block keeps sums as soon as
it has them, and finishes slices when it has made all its pieces, which all blocks have about at one time.

Who waits for a block that was not started may wait for ever, where other kernels hold the card. Blocks are
numbered from the last one down (schedule/work_units.py), so the first of a tile waits for those that were started before.
The others count who runs: if all do they may wait, too; if not they leave their slices to the first one, and
say so by their flag.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..epilogue.thread_sums import thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes, dependent_launch, integers, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..packed.layout import ROWS, STRIPS
from ..schedule.work_units import bounds_of, sharers_of
from .producer import MULTIPLY, RoleTile

LEFT, OWN = (
    np.uint32(1),
    np.uint32(2),
)  # a flag: the sums are there, and the slice is left to the first, or not
LOADS = 16  # of sums that are under way at one time, four each
# Words in shared memory: whether this block leaves its slice to the first, whether others have left theirs to
# it; and where the host does not know it, how the last tiles are shared out and how many come before.
LEAVES, HAS_MORE, SHARES, WHOLES = 0, 4, 8, 20  # and a barrier of cluster_split.py at 24
put, take4 = ptx.put, bf16x2.take4


def flags_of(sharing: int, divided: int) -> int:
    """Words: a flag for each block, one for the first of each tile, and how many blocks run."""
    return sharing + divided + 1


@cache
def beginner() -> Any:
    """The device function by which a block says that it runs."""
    wait_for_predecessor, reach = dependent_launch.wait_for_predecessor, barriers.add_release

    @inlined
    def begin(flags: Any, share: Any) -> None:
        rank, sharing, divided = share
        if uint32(cuda.threadIdx.x) == uint32(0) and rank < sharing:
            wait_for_predecessor()  # it makes the flags
            reach(flags + uint64(uint32(sharing + divided)) * uint64(4), uint32(1))

    return begin


@inlined
def noted(pieces: Any, notes: Any) -> Any:
    """How tiles are shared out, as ``note_down`` left it."""
    divided, sharing = take4(uint32(notes + uint32(SHARES))), take4(uint32(notes + uint32(SHARES + 4)))
    parts, wholes = take4(uint32(notes + uint32(SHARES + 8))), take4(uint32(notes + uint32(WHOLES)))
    return uint32(divided), uint32(sharing), uint32(parts), uint32(0), uint32(0), uint32(wholes)


@inlined
def note_down(pieces: Any, wholes: Any, notes: Any) -> None:
    """One thread, for all of a block: tiles that are cut into equal parts."""
    divided, sharing, parts, _, _ = pieces
    put(uint32(notes + uint32(SHARES)), int32(divided))
    put(uint32(notes + uint32(SHARES + 4)), int32(sharing))
    put(uint32(notes + uint32(SHARES + 8)), int32(parts))
    put(uint32(notes + uint32(WHOLES)), int32(wholes))


@cache
def keeper(tile: RoleTile) -> Any:
    """The device function that keeps the sums of a piece for those who share its tile."""
    of_slot = 4 * STRIPS * ROWS * tile.columns
    keep_sums = thread_sums(tile.columns).keep
    meet, reach, seen = barriers.named_barrier(1, MULTIPLY), barriers.add_release, barriers.load_relaxed

    @inlined
    def keep(sums: Any, parts: Any, flags: Any, number: Any, first: Any, share: Any, notes: Any) -> None:
        (rank, sharing, divided), thread = share, uint32(cuda.threadIdx.x)
        slot = rank if first > uint32(0) else uint32(sharing + number)
        own = parts + uint64(slot) * uint64(of_slot) + uint64(thread) * uint64(16)
        running = seen(flags + uint64(uint32(sharing + divided)) * uint64(4))
        keep_sums(sums, own, uint32(16 * MULTIPLY))
        meet()
        if thread == uint32(0):
            leaves = uint32(1) if running < sharing and first > uint32(0) else uint32(0)
            reach(flags + uint64(slot) * uint64(4), uint32(LEFT) if leaves else uint32(OWN))
            if leaves:
                put(uint32(notes + uint32(LEAVES)), int32(1))

    return keep


@cache
def slicer(tile: RoleTile, listed: bool) -> Any:
    """The device function that finishes one slice of a tile: sums of all parts, the first block's first.

    ``listed``: a list says to which row of y a column of the tile goes.
    """
    fours, of_slot, apart = tile.columns // 8, 4 * STRIPS * ROWS * tile.columns, 16 * MULTIPLY
    at_once = 8 if tile.columns <= 64 else 4  # parts
    each = LOADS // at_once  # fours of one
    few, many = 4 * each, 4 * LOADS
    load_if, store_float, load4 = integers.load_floats_l2_if, ptx.store_float, codes.load4

    @inlined
    def finish(
        parts: Any, slot: Any, first: Any, count: Any, which: Any, y: Any, place: Any, n: Any
    ) -> None:  # fmt: skip
        row, column, m, of_column = place
        total, v = cuda.local.array(few, float32), cuda.local.array(many, float32)
        own = parts + uint64(uint32(cuda.threadIdx.x)) * uint64(16)
        q = uint32(uint32(which * uint32(fours)) // count)
        end = uint32(uint32(uint32(which + uint32(1)) * uint32(fours)) // count)
        while q < end:
            for i in range(few):
                total[i] = float32(0)
            k = uint32(0)
            while k < count:
                for part in range(at_once):
                    there = uint32(k + uint32(part))
                    place = slot if there == uint32(0) else uint32(first + there)
                    at = own + uint64(place) * uint64(of_slot) + uint64(q) * uint64(apart)
                    for i in range(each):
                        wanted = uint32(1) if there < count and uint32(q + uint32(i)) < end else uint32(0)
                        found, o = load_if(at + uint64(i * apart), wanted), 4 * (each * part + i)
                        v[o], v[o + 1], v[o + 2], v[o + 3] = found[0], found[1], found[2], found[3]
                for part in range(at_once):
                    for i in range(few):
                        total[i] += v[few * part + i]
                k = uint32(k + uint32(at_once))
            for i in range(each):
                if uint32(q + uint32(i)) < end:
                    for e in range(4):
                        c = uint32(column + uint32(uint32(q + uint32(i)) << uint32(3)) + uint32(e & 1))
                        r = uint32(row + uint32(8 * (e >> 1)))
                        if c < m and r < n:
                            to = uint32(load4(of_column + uint64(c) * uint64(4))) if listed else c
                            store_float(address(y, to, n, r, 4), total[4 * i + e])
            q = uint32(q + uint32(each))

    return finish


@cache
def finisher(tile: RoleTile, listed: bool) -> Any:
    """The device function for a block's slice of a tile that it shares, and for those that are left to it."""
    finish_slice, meet = slicer(tile, listed), barriers.named_barrier(1, MULTIPLY)
    wait_for_any, seen = barriers.wait_for_any, barriers.load_relaxed

    @inlined
    def finish(
        ends: Any, number: Any, place: Any, n: Any, stages: Any, share: Any, pieces: Any, notes: Any
    ) -> None:  # fmt: skip
        (y, parts, flags), (rank, sharing, _) = ends, share
        first, count = sharers_of(number, stages, pieces)
        which, slot = uint32(rank - first), uint32(sharing + number)
        meet()  # what was noted down is there
        if which == uint32(0) or take4(uint32(notes + uint32(LEAVES))) == uint32(0):
            i = uint32(cuda.threadIdx.x)
            while i < count:
                other = slot if i == uint32(0) else uint32(first + i)
                if wait_for_any(flags + uint64(other) * uint64(4)) == uint32(LEFT):
                    put(uint32(notes + uint32(HAS_MORE)), int32(1))
                i = uint32(i + uint32(MULTIPLY))
            meet()
            finish_slice(parts, slot, first, count, which, y, place, n)
            if which == uint32(0) and take4(uint32(notes + uint32(HAS_MORE))) != uint32(0):
                i = uint32(1)
                while i < count:
                    if seen(flags + uint64(uint32(first + i)) * uint64(4)) == uint32(LEFT):
                        finish_slice(parts, slot, first, count, i, y, place, n)
                    i = uint32(i + uint32(1))

    return finish


def ender(tile: RoleTile, locate: Any, listed: bool) -> Any:
    """The device function for the end of a block: its slices of the tiles that it shares, two at most.

    ``locate``: as consumers.py has it.
    """
    finish = finisher(tile, listed)

    @inlined
    def close(
        ends: Any, where: Any, thread_at: Any, n: Any, stages: Any, share: Any, pieces: Any, wholes: Any,
        notes: Any,
    ) -> None:  # fmt: skip
        rank, sharing, _ = share
        if rank < sharing:
            begin, end = bounds_of(rank, stages, pieces)
            number = uint32(begin // stages)
            shared = begin > uint32(number * stages)
            if not shared:  # a tile that this block begins; the last one if it does not end it
                number = uint32(end // stages)
                shared = end > uint32(number * stages)
            while shared:
                place = locate(where, uint32(wholes + number), thread_at)
                finish(ends, number, place, n, stages, share, pieces, notes)
                later = uint32(end // stages)
                shared = later > number and end > uint32(later * stages)
                number = later

    return close


class Sharing(NamedTuple):
    """Device functions: what blocks do that share a tile."""

    begin: Any  # a block says that it runs
    keep: Any  # sums of a piece
    close: Any  # at the end of a block


def sharing_of(tile: RoleTile, locate: Any, listed: bool) -> Sharing:
    """By way of global memory."""
    return Sharing(beginner(), keeper(tile), ender(tile, locate, listed))
