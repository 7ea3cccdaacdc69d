"""Tiles whose blocks are a cluster: each hands out its sums to those who finish them, and finishes a part.

    block      r              r + 1          r + 2           the first block is the last one of its cluster
    finishes   0, 3, 6, …     1, 4, 7, …     2, 5, 8, …      of each thread's fours of sums

What stream_k.py does by way of global memory, where a tile has no more blocks than a cluster may have and
none of them has a part of another tile: no memory, no flags, and nobody waits for a block that was not
started. Sums lie where stages were, once no block of the cluster multiplies any more:

    [parts, in the order of blocks][fours][threads]

They are added up in that order, as there: the results are the same. Of narrow tiles a barrier of each block
counts the bytes that come; sums of wide ones are faster brought without, and all blocks meet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..epilogue.thread_sums import counted, thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from ..packed.layout import StripLayout
from ..schedule.work_units import LARGEST
from .producer import MULTIPLY, RoleTile
from .stream_k import Sharing, beginner, ender, keeper

COMING = 24  # where among the notes the barrier is
APART = 16 * MULTIPLY  # bytes of a four of all threads
AT_ONCE = 4  # fours that are added up together


@cache
def cluster_beginner() -> Any:
    """The device function by which a block says that it runs, where nothing else tells the others."""
    begin_alone, cluster_size = beginner(), barriers.cluster_size

    @inlined
    def begin(flags: Any, share: Any) -> None:
        if cluster_size() == uint32(1):
            begin_alone(flags, share)

    return begin


def handed_out(layout: StripLayout, tile: RoleTile) -> int:
    """How far before the notes of a block the sums lie that it is given."""
    fours, length = tile.columns // 8, tile.stages(layout) * tile.stage(layout)
    most = max(parts * -(-fours // parts) for parts in range(2, LARGEST + 1))
    assert (most + AT_ONCE) * APART <= length, tile  # some that are not there are read for nothing
    return length + 16 * tile.stages(layout)


@cache
def cluster_keeper(layout: StripLayout, tile: RoleTile) -> Any:
    """The device function that keeps the sums of a piece: keeper's, or one that hands them out."""
    keep_alone, hand_out, back = keeper(tile), thread_sums(tile.columns).hand_out, handed_out(layout, tile)
    fours, told = tile.columns // 8, counted(tile.columns)
    cluster_size, greet, join, expect = (
        barriers.cluster_size, barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.expect
    )  # fmt: skip

    @inlined
    def keep(sums: Any, parts: Any, flags: Any, number: Any, first: Any, share: Any, notes: Any) -> None:
        count = cluster_size()
        if count == uint32(1):
            keep_alone(sums, parts, flags, number, first, share, notes)
        else:
            greet()
            which, last = uint32(share[0] % count), uint32(uint32(fours - 1) + count)
            thread, coming = uint32(cuda.threadIdx.x), uint32(notes + uint32(COMING))
            if told and thread == uint32(0):
                given = uint32(uint32(last - which) // count)
                expect(coming, uint32(uint32(given * count) * uint32(APART)))
            own = uint32(which * uint32(last // count) * uint32(APART))
            at = uint32(uint32(notes - uint32(back)) + own + uint32(thread << uint32(4)))
            join()  # no block of the cluster multiplies any more
            hand_out(sums, at, uint32(APART), count, coming)

    return keep


def cluster_ender(layout: StripLayout, tile: RoleTile, locate: Any) -> Any:
    """The device function for the end of a block: ender's, or one that adds up what a block was given."""
    close_alone, back, fours = ender(tile, locate, False), handed_out(layout, tile), tile.columns // 8
    few, told = 4 * AT_ONCE, counted(tile.columns)
    cluster_size, meet, wait, take_floats, store_float = (
        barriers.cluster_size, barriers.sync_cluster, barriers.wait, ptx.take_floats, ptx.store_float
    )  # fmt: skip

    @inlined
    def close(
        ends: Any, where: Any, thread_at: Any, n: Any, stages: Any, share: Any, pieces: Any, wholes: Any,
        notes: Any,
    ) -> None:  # fmt: skip
        rank, sharing, _ = share
        count = cluster_size()
        if count == uint32(1):
            close_alone(ends, where, thread_at, n, stages, share, pieces, wholes, notes)
        elif rank < sharing:
            number, y, total = uint32(rank // count), ends[0], cuda.local.array(few, float32)
            row, column, m, _ = locate(where, uint32(wholes + number), thread_at)
            of_part = uint32(uint32(uint32(uint32(fours - 1) + count) // count) * uint32(APART))
            at = uint32(uint32(notes - uint32(back)) + uint32(uint32(cuda.threadIdx.x) << uint32(4)))
            four = uint32(rank - uint32(number * count))
            if told:
                wait(uint32(notes + uint32(COMING)), uint32(0))
            else:
                meet()
            while four < uint32(fours):
                part, there = uint32(0), at
                for i in range(few):
                    total[i] = float32(0)
                while part < count:
                    for i in range(AT_ONCE):
                        v = take_floats(uint32(there + uint32(i * APART)))
                        for e in range(4):
                            total[4 * i + e] += v[e]
                    there, part = uint32(there + of_part), uint32(part + uint32(1))
                for i in range(AT_ONCE):
                    if four < uint32(fours):
                        for e in range(4):
                            c = uint32(column + uint32(four << uint32(3)) + uint32(e & 1))
                            r = uint32(row + uint32(8 * (e >> 1)))
                            if c < m and r < n:
                                store_float(address(y, c, n, r, 4), total[4 * i + e])
                    four = uint32(four + count)
                at = uint32(at + uint32(AT_ONCE * APART))

    return close


def sharing_in_clusters(layout: StripLayout, tile: RoleTile, locate: Any) -> Sharing:
    """In clusters, where blocks have some; otherwise by way of global memory."""
    return Sharing(cluster_beginner(), cluster_keeper(layout, tile), cluster_ender(layout, tile, locate))
