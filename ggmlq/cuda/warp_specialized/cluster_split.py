"""Tiles whose K is split among the blocks of a cluster: partial sums go through shared memory.

    block      r              r + 1          r + 2           the first block is the last one of its cluster
    finishes   0, 3, 6, …     1, 4, 7, …     2, 5, 8, …      of each thread's fours of sums

This replaces stream_k.py where a tile has no more blocks than a cluster, and no block has parts of two
tiles. It needs no global memory and no flags, and no block waits for one that was not started. The *inbox*
of a block lies where its stages were, once no block of the cluster multiplies any more:

    [blocks, in their order][fours][threads]

Sums are added up in that order, as in stream_k.py: the results are the same. With narrow tiles a barrier of
each block counts the bytes that arrive. With wide ones plain stores are faster, and all blocks meet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..epilogue import results
from ..epilogue.thread_sums import counted, thread_sums
from ..intrinsics import barrier as barriers
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from ..packed.layout import PackedLayout
from ..schedule.work_units import MAX_CLUSTER
from .stream_k import SplitEpilogue, announcer, partial_storer, split_epilogue
from .tile import CONSUMER_THREADS, WarpSpecializedTile

INBOX_BARRIER = 24  # offset in the scratch words
FOUR_BYTES = 16 * CONSUMER_THREADS  # of one four of sums of all threads
AT_ONCE = 4  # fours that are added up together


@cache
def cluster_announcer() -> Any:
    """The device function by which a block that is in no cluster counts itself among the running ones."""
    announce_alone, cluster_size = announcer(), barriers.cluster_size

    @inlined
    def announce(flags: Any, position: Any) -> None:
        if cluster_size() == uint32(1):
            announce_alone(flags, position)

    return announce


def inbox_offset(layout: PackedLayout, tile: WarpSpecializedTile) -> int:
    """Bytes from a block's inbox to its scratch words."""
    fours, length = tile.columns // 8, tile.stages(layout) * tile.stage(layout)
    most = max(splits * -(-fours // splits) for splits in range(2, MAX_CLUSTER + 1))
    assert (most + AT_ONCE) * FOUR_BYTES <= length, tile  # beyond the inbox some bytes are read and not used
    return length + 16 * tile.stages(layout)


@cache
def cluster_partial_sender(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function for the partial sums of a work unit: it sends them to the cluster, or stores them
    if there is none.
    """
    store_alone, send, back = partial_storer(tile), thread_sums(tile.columns).send, inbox_offset(layout, tile)
    fours, counts_bytes = tile.columns // 8, counted(tile.columns)
    cluster_size, greet, join, expect = (
        barriers.cluster_size, barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.expect
    )  # fmt: skip

    @inlined
    def send_partial(
        sums: Any, partials: Any, flags: Any, number: Any, first: Any, position: Any, scratch: Any
    ) -> None:
        count = cluster_size()
        if count == uint32(1):
            store_alone(sums, partials, flags, number, first, position, scratch)
        else:
            greet()
            which, last = uint32(position[0] % count), uint32(uint32(fours - 1) + count)
            thread, inbox = uint32(cuda.threadIdx.x), uint32(scratch + uint32(INBOX_BARRIER))
            if counts_bytes and thread == uint32(0):
                fours_here = uint32(uint32(last - which) // count)
                expect(inbox, uint32(uint32(fours_here * count) * uint32(FOUR_BYTES)))
            place = uint32(which * uint32(last // count) * uint32(FOUR_BYTES))
            at = uint32(uint32(scratch - uint32(back)) + place + uint32(thread << uint32(4)))
            join()  # no block of the cluster multiplies any more
            send(sums, at, uint32(FOUR_BYTES), count, inbox)

    return send_partial


def cluster_epilogue(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function for the end of a block: it adds up its inbox, or does as stream_k.py where there
    is no cluster.
    """
    finish_alone, back = split_epilogue(tile, locate, False), inbox_offset(layout, tile)
    fours = tile.columns // 8
    few, counts_bytes = 4 * AT_ONCE, counted(tile.columns)
    cluster_size, meet, wait, take_floats = (
        barriers.cluster_size, barriers.sync_cluster, barriers.wait, ptx.take_floats
    )  # fmt: skip
    load_bias, store = results.bias_loader(), results.store_result

    @inlined
    def finish(
        outputs: Any, tile_order: Any, thread_at: Any, n: Any, stages: Any, position: Any, split: Any,
        whole_tiles: Any, scratch: Any,
    ) -> None:  # fmt: skip
        rank, split_blocks, _ = position
        count = cluster_size()
        if count == uint32(1):
            finish_alone(outputs, tile_order, thread_at, n, stages, position, split, whole_tiles, scratch)
        elif rank < split_blocks:
            number, y, total = uint32(rank // count), outputs[0], cuda.local.array(few, float32)
            row, column, m, _ = locate(tile_order, uint32(whole_tiles + number), thread_at)
            low, high = load_bias(y, row, n), load_bias(y, uint32(row + uint32(8)), n)
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
                                store(y, c, r, n, total[4 * i + e] + (high if e > 1 else low))
                    four = uint32(four + count)
                at = uint32(at + uint32(AT_ONCE * FOUR_BYTES))

    return finish


def within_clusters(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> SplitEpilogue:
    """The functions of blocks in clusters; launched without clusters, they use global memory."""
    return SplitEpilogue(
        cluster_announcer(), cluster_partial_sender(layout, tile), cluster_epilogue(layout, tile, locate)
    )
