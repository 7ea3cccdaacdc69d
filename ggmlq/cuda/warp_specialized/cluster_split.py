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
from ..packed.layout import PackedLayout
from ..schedule.work_units import MAX_CLUSTER
from .stream_k import SplitEpilogue, announcer, partial_storer, split_epilogue
from .tile import CONSUMER_THREADS, WarpSpecializedTile

INBOX_BARRIER = 24  # where among the notes the barrier is
FOUR_BYTES = 16 * CONSUMER_THREADS  # bytes of a four of all threads
AT_ONCE = 4  # fours that are added up together


@cache
def cluster_announcer() -> Any:
    """The device function by which a block says that it runs, where nothing else tells the others."""
    announce_alone, blocks_of_cluster = announcer(), barriers.blocks_of_cluster

    @inlined
    def announce(flags: Any, position: Any) -> None:
        if blocks_of_cluster() == uint32(1):
            announce_alone(flags, position)

    return announce


def inbox_offset(layout: PackedLayout, tile: WarpSpecializedTile) -> int:
    """How far before the notes of a block the sums lie that it is given."""
    fours, length = tile.columns // 8, tile.stages(layout) * tile.stage(layout)
    most = max(parts * -(-fours // parts) for parts in range(2, MAX_CLUSTER + 1))
    assert (most + AT_ONCE) * FOUR_BYTES <= length, tile  # some that are not there are read for nothing
    return length + 16 * tile.stages(layout)


@cache
def cluster_partial_sender(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function that keeps the sums of a piece: keeper's, or one that hands them out."""
    store_alone, hand_out, back = (
        partial_storer(tile),
        thread_sums(tile.columns).hand_out,
        inbox_offset(layout, tile),
    )
    fours, counts_bytes = tile.columns // 8, counted(tile.columns)
    blocks_of_cluster, greet, join, expect = (
        barriers.blocks_of_cluster, barriers.pass_by_cluster, barriers.join_cluster, barriers.expect
    )  # fmt: skip

    @inlined
    def send_partial(
        sums: Any, parts: Any, flags: Any, number: Any, first: Any, position: Any, scratch: Any
    ) -> None:
        count = blocks_of_cluster()
        if count == uint32(1):
            store_alone(sums, parts, flags, number, first, position, scratch)
        else:
            greet()
            which, last = uint32(position[0] % count), uint32(uint32(fours - 1) + count)
            thread, inbox = uint32(cuda.threadIdx.x), uint32(scratch + uint32(INBOX_BARRIER))
            if counts_bytes and thread == uint32(0):
                given = uint32(uint32(last - which) // count)
                expect(inbox, uint32(uint32(given * count) * uint32(FOUR_BYTES)))
            own = uint32(which * uint32(last // count) * uint32(FOUR_BYTES))
            at = uint32(uint32(scratch - uint32(back)) + own + uint32(thread << uint32(4)))
            join()  # no block of the cluster multiplies any more
            hand_out(sums, at, uint32(FOUR_BYTES), count, inbox)

    return send_partial


def cluster_epilogue(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function for the end of a block: ender's, or one that adds up what a block was given."""
    finish_alone, back, fours = (
        split_epilogue(tile, locate, False),
        inbox_offset(layout, tile),
        tile.columns // 8,
    )
    few, counts_bytes = 4 * AT_ONCE, counted(tile.columns)
    blocks_of_cluster, meet, wait, take_floats, store_float = (
        barriers.blocks_of_cluster, barriers.meet_cluster, barriers.wait, ptx.take_floats, ptx.store_float
    )  # fmt: skip

    @inlined
    def finish(
        outputs: Any, schedule: Any, thread_at: Any, n: Any, stages: Any, position: Any, split: Any, whole_tiles: Any,
        scratch: Any,
    ) -> None:  # fmt: skip
        rank, split_blocks, _ = position
        count = blocks_of_cluster()
        if count == uint32(1):
            finish_alone(outputs, schedule, thread_at, n, stages, position, split, whole_tiles, scratch)
        elif rank < split_blocks:
            number, y, total = uint32(rank // count), outputs[0], cuda.local.array(few, float32)
            row, column, m, _ = locate(schedule, uint32(whole_tiles + number), thread_at)
            partial_bytes = uint32(uint32(uint32(uint32(fours - 1) + count) // count) * uint32(FOUR_BYTES))
            at = uint32(uint32(scratch - uint32(back)) + uint32(uint32(cuda.threadIdx.x) << uint32(4)))
            four = uint32(rank - uint32(number * count))
            if counts_bytes:
                wait(uint32(scratch + uint32(INBOX_BARRIER)), uint32(0))
            else:
                meet()
            while four < uint32(fours):
                part, there = uint32(0), at
                for i in range(few):
                    total[i] = float32(0)
                while part < count:
                    for i in range(AT_ONCE):
                        v = take_floats(uint32(there + uint32(i * FOUR_BYTES)))
                        for e in range(4):
                            total[4 * i + e] += v[e]
                    there, part = uint32(there + partial_bytes), uint32(part + uint32(1))
                for i in range(AT_ONCE):
                    if four < uint32(fours):
                        for e in range(4):
                            c = uint32(column + uint32(four << uint32(3)) + uint32(e & 1))
                            r = uint32(row + uint32(8 * (e >> 1)))
                            if c < m and r < n:
                                store_float(address(y, c, n, r, 4), total[4 * i + e])
                    four = uint32(four + count)
                at = uint32(at + uint32(AT_ONCE * FOUR_BYTES))

    return finish


def within_clusters(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> SplitEpilogue:
    """In clusters, where blocks have some; otherwise by way of global memory."""
    return SplitEpilogue(
        cluster_announcer(), cluster_partial_sender(layout, tile), cluster_epilogue(layout, tile, locate)
    )
