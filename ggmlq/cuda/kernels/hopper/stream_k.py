"""Stream-K: tiles whose K is split among blocks. Each block stores partial sums, and finishes a slice of
the tile.

    block      r             r + 1         r + 2
    stores     its partial sums, and raises its flag
    finishes   first third   second third  last third     of each thread's sums, in the order of blocks

So no block adds up much, and a result does not depend on which block was first. A block stores partial sums
as soon as it has them, and finishes slices after all its work units, which is about the same time for all
blocks.

Hazard: a block that waits for one that was not started may wait for ever, where other kernels hold the
card. Blocks are numbered from the last one down (tiles.py), so the first block of a tile waits only for
blocks that were started before it. The other blocks count how many run. If all run they may wait, too. If
not they leave their slices to the first block, and say so by their flag.

Where a tile has no more blocks than a cluster, and no block has parts of two tiles, the blocks of a tile are
a cluster and exchange partial sums through shared memory (the second half of this file).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.layout import TILE_ROWS, PackedLayout
from ..epilogue import results
from ..epilogue.results import counts_bytes, thread_sums
from .tiles import CONSUMER_THREADS, MAX_CLUSTER, LastWave, WarpSpecializedTile, blocks_of_tile, shared_stages

# A flag says that sums are stored, and whether the block's slice is left to the first block.
SLICE_LEFT, STORED = np.uint32(1), np.uint32(2)
LOADS_IN_FLIGHT = 16  # of a thread that adds up, four sums each
# Offsets of the scratch words: whether this block leaves its slice to the first, whether others left theirs
# to it; and, where the host does not know them, the split of the last tiles and the number of whole tiles;
# then the barrier of a cluster's inbox.
LEAVES_SLICE, HAS_SLICES, SPLIT, WHOLE_TILES, INBOX_BARRIER = 0, 4, 8, 20, 24
put, take4 = ptx.put4, ptx.take4


class Outputs(NamedTuple):
    """The memory that consumers write."""

    y: Any  # a Result of kernels/epilogue/results.py, or the address of float32 rows
    partials: Any  # float32 [slots, a tile]: a slot for each block, then one for the first block of each tile
    flags: Any  # uint32: one for each slot, then the count of running blocks


class SplitEpilogue(NamedTuple):
    """Device functions of blocks that share a tile."""

    announce: Any  # (flags, rank, wave) at the start of a block
    # (sums, outputs, tile, first stage, rank, wave, scratch) after a work unit that is not a whole tile
    store_partial: Any
    finish: Any  # (outputs, tile_order, thread_at, n, stages, rank, wave, scratch) at the end of a block


def through_memory(tile: WarpSpecializedTile, locate: Any, listed: bool) -> SplitEpilogue:
    """The functions of blocks that exchange partial sums through global memory.

    ``locate``: the device function for a ConsumerPlace. ``listed``: a list says to which row of y a column of
    the tile goes.
    """
    return SplitEpilogue(announcer(), partial_storer(tile), split_epilogue(tile, locate, listed))


def within_clusters(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> SplitEpilogue:
    """The functions of blocks in clusters; launched without clusters, they use global memory."""
    return SplitEpilogue(
        cluster_announcer(), cluster_partial_sender(layout, tile), cluster_epilogue(layout, tile, locate)
    )


def exchange_sizes(split: Any, tile: WarpSpecializedTile) -> tuple[int, int]:
    """The numbers of partial sums and of flags in memory for a split of cost/warp_specialized.py.

    There are none where the blocks of a tile meet in a cluster.
    """
    slots = split.split_blocks + split.split_tiles if split.cluster == 1 else 0
    return slots * TILE_ROWS * tile.columns, slots + 1 if slots else 0


# --- the split of the last wave, where the kernel decides it -------------------------------------


@inlined
def store_split(wave: Any, scratch: Any) -> None:
    """Leave the split of the last tiles, each cut into equal parts, for all threads of a block; one thread
    calls it.
    """
    put(uint32(scratch + SPLIT), int32(wave.split_tiles))
    put(uint32(scratch + (SPLIT + 4)), int32(wave.split_blocks))
    put(uint32(scratch + (SPLIT + 8)), int32(wave.splits))
    put(uint32(scratch + WHOLE_TILES), int32(wave.whole_tiles))


@inlined
def stored_split(wave: Any, scratch: Any) -> Any:
    """The split of the last tiles, as ``store_split`` left it."""
    split_tiles = take4(uint32(scratch + SPLIT))
    split_blocks = take4(uint32(scratch + (SPLIT + 4)))
    splits = take4(uint32(scratch + (SPLIT + 8)))
    whole_tiles = take4(uint32(scratch + WHOLE_TILES))
    return LastWave(split_tiles, split_blocks, splits, uint32(0), uint32(0), whole_tiles)


# --- through global memory ----------------------------------------------------------------------


@cache
def announcer() -> Any:
    """The device function by which a block counts itself among the running ones."""

    @inlined
    def announce(flags: Any, rank: Any, wave: Any) -> None:
        if uint32(cuda.threadIdx.x) == 0 and rank < wave.split_blocks:
            hopper.wait_for_predecessor()  # it clears the flags: what is counted before is lost
            running = uint32(wave.split_blocks + wave.split_tiles)
            hopper.add_release(flags + uint64(running) * 4, uint32(1))

    return announce


@cache
def partial_storer(tile: WarpSpecializedTile) -> Any:
    """The device function that stores the partial sums of a work unit for the blocks that share its tile."""
    slot_bytes = 4 * TILE_ROWS * tile.columns
    store_sums = thread_sums(tile.columns).store
    meet = hopper.named_barrier(1, CONSUMER_THREADS)

    @inlined
    def store_partial(
        sums: Any, outputs: Any, number: Any, first: Any, rank: Any, wave: Any, scratch: Any
    ) -> None:
        thread, flags = uint32(cuda.threadIdx.x), outputs.flags
        # A block may end one tile and begin the next: so what begins a tile has a slot of the tile.
        slot = rank if first > 0 else uint32(wave.split_blocks + number)
        to = outputs.partials + uint64(slot) * slot_bytes + uint64(thread) * 16
        # The count only grows: read this early it may be too small, and then the block leaves a slice that it
        # could have finished.
        running = hopper.load_relaxed(flags + uint64(uint32(wave.split_blocks + wave.split_tiles)) * 4)
        store_sums(sums, to, uint32(16 * CONSUMER_THREADS))
        # One thread raises the flag for all: it must not before the last of them has stored. The release
        # makes what the barrier has ordered before it visible to blocks that see the flag.
        meet()
        if thread == 0:
            # Only blocks that do not begin the tile may leave their slices; they do if some block that they
            # would wait for may not have been started.
            leaves = uint32(1) if running < wave.split_blocks and first > 0 else uint32(0)
            hopper.add_release(flags + uint64(slot) * 4, SLICE_LEFT if leaves else STORED)
            if leaves:
                put(uint32(scratch + LEAVES_SLICE), int32(1))

    return store_partial


@cache
def slice_epilogue(tile: WarpSpecializedTile, listed: bool) -> Any:
    """The device function that finishes one slice of a tile: it adds the partial sums up, those of the
    first block first.
    """
    fours, slot_bytes, apart = tile.columns // 8, 4 * TILE_ROWS * tile.columns, 16 * CONSUMER_THREADS
    at_once = 8 if tile.columns <= 64 else 4  # blocks whose sums are loaded together
    fours_each = LOADS_IN_FLIGHT // at_once  # of one block
    total_sums, loaded_sums = 4 * fours_each, 4 * LOADS_IN_FLIGHT
    load_bias, store = results.bias_loader(), results.store_result

    @inlined
    def finish_slice(
        partials: Any, slot: Any, first: Any, count: Any, which: Any, y: Any, place: Any, n: Any
    ) -> None:  # fmt: skip
        row, column = place.row, place.column
        if not listed:
            low, high = load_bias(y, row, n), load_bias(y, uint32(row + 8), n)
        total, v = cuda.local.array(total_sums, float32), cuda.local.array(loaded_sums, float32)
        thread_sums_at = partials + uint64(uint32(cuda.threadIdx.x)) * 16
        q = uint32(uint32(which * fours) // count)
        end = uint32(uint32(uint32(which + 1) * fours) // count)
        while q < end:
            for i in range(total_sums):
                total[i] = float32(0)
            k = uint32(0)
            while k < count:
                # Loads go past the first cache, which may hold what was there before: other blocks wrote it.
                for part in range(at_once):
                    there = uint32(k + uint32(part))
                    slot_there = slot if there == 0 else uint32(first + there)
                    at = thread_sums_at + uint64(slot_there) * slot_bytes + uint64(q) * apart
                    for i in range(fours_each):
                        needed = uint32(1) if there < count and uint32(q + uint32(i)) < end else uint32(0)
                        four, o = (
                            ptx.load_floats_l2_if(at + uint64(i * apart), needed),
                            4 * (fours_each * part + i),
                        )
                        v[o], v[o + 1], v[o + 2], v[o + 3] = four[0], four[1], four[2], four[3]
                for part in range(at_once):
                    for i in range(total_sums):
                        total[i] += v[total_sums * part + i]
                k = uint32(k + at_once)
            for i in range(fours_each):
                if uint32(q + uint32(i)) < end:
                    for e in range(4):
                        c = uint32(column + uint32(uint32(q + uint32(i)) << 3) + uint32(e & 1))
                        r = uint32(row + uint32(8 * (e >> 1)))
                        if c < place.limit and r < n:
                            if listed:
                                to = ptx.load4(place.rows_of_columns + uint64(c) * 4)
                                ptx.store_float(address(y, to, n, r, 4), total[4 * i + e])
                            else:
                                store(y, c, r, n, total[4 * i + e] + (high if e > 1 else low))
            q = uint32(q + fours_each)

    return finish_slice


@cache
def tile_epilogue(tile: WarpSpecializedTile, listed: bool) -> Any:
    """The device function for a block's slice of a tile that it shares, and for slices that others leave to
    it.
    """
    finish_slice, meet = slice_epilogue(tile, listed), hopper.named_barrier(1, CONSUMER_THREADS)

    @inlined
    def finish_tile(
        outputs: Any, number: Any, place: Any, n: Any, stages: Any, rank: Any, wave: Any, scratch: Any
    ) -> None:  # fmt: skip
        y, partials, flags = outputs.y, outputs.partials, outputs.flags
        first, count = blocks_of_tile(number, stages, wave)
        which, slot = uint32(rank - first), uint32(wave.split_blocks + number)
        meet()  # the scratch words are written
        # Nobody waits in a circle: a block that left its slice waits for none; the first block of a tile
        # waits for blocks that were started before it; any other waits only if it saw all of them running.
        if which == 0 or take4(uint32(scratch + LEAVES_SLICE)) == 0:
            i = uint32(cuda.threadIdx.x)
            while i < count:
                other = slot if i == 0 else uint32(first + i)
                if hopper.wait_for_any(flags + uint64(other) * 4) == SLICE_LEFT:
                    put(uint32(scratch + HAS_SLICES), int32(1))
                i = uint32(i + CONSUMER_THREADS)
            meet()  # each thread waited for some flags alone: now all are raised for all threads
            finish_slice(partials, slot, first, count, which, y, place, n)
            if which == 0 and take4(uint32(scratch + HAS_SLICES)) != 0:
                i = uint32(1)
                while i < count:
                    if hopper.load_relaxed(flags + uint64(uint32(first + i)) * 4) == SLICE_LEFT:
                        finish_slice(partials, slot, first, count, i, y, place, n)
                    i = uint32(i + 1)

    return finish_tile


def split_epilogue(tile: WarpSpecializedTile, locate: Any, listed: bool) -> Any:
    """The device function for the end of a block: it finishes slices of the tiles that it shares, two at
    most.
    """
    finish_tile = tile_epilogue(tile, listed)

    @inlined
    def finish(
        outputs: Any, tile_order: Any, thread_at: Any, n: Any, stages: Any, rank: Any, wave: Any, scratch: Any
    ) -> None:
        if rank < wave.split_blocks:
            first, end = shared_stages(rank, stages, wave)
            number = uint32(first // stages)
            shared = first > uint32(number * stages)
            if not shared:  # a tile that this block begins and does not end
                number = uint32(end // stages)
                shared = end > uint32(number * stages)
            while shared:
                place = locate(tile_order, uint32(wave.whole_tiles + number), thread_at)
                finish_tile(outputs, number, place, n, stages, rank, wave, scratch)
                later = uint32(end // stages)
                shared = later > number and end > uint32(later * stages)
                number = later

    return finish


# --- through the shared memory of a cluster ------------------------------------------------------
#
#     block      r              r + 1          r + 2           the first block is the last one of its cluster
#     finishes   0, 3, 6, …     1, 4, 7, …     2, 5, 8, …      of each thread's fours of sums
#
# It needs no global memory and no flags, and no block waits for one that was not started: the blocks of a
# cluster start together. The *inbox* of a block lies where its stages were, once no block of the cluster
# multiplies any more:
#
#     [blocks, in their order][fours][threads]
#
# Sums are added up in that order, as through global memory: the results are the same. With narrow tiles a
# barrier of each block counts the bytes that arrive. With wide ones plain stores are faster, and all blocks
# meet.

FOUR_BYTES = 16 * CONSUMER_THREADS  # of one four of sums of all threads
FOURS_AT_ONCE = 4  # that are added up together


@cache
def cluster_announcer() -> Any:
    """The device function by which a block that is in no cluster counts itself among the running ones."""
    announce_alone = announcer()

    @inlined
    def announce(flags: Any, rank: Any, wave: Any) -> None:
        if hopper.cluster_size() == 1:
            announce_alone(flags, rank, wave)

    return announce


def inbox_offset(layout: PackedLayout, tile: WarpSpecializedTile) -> int:
    """Bytes from a block's inbox to its scratch words."""
    fours, length = tile.columns // 8, tile.stages(layout) * tile.stage(layout)
    most = max(splits * -(-fours // splits) for splits in range(2, MAX_CLUSTER + 1))
    # beyond the inbox some bytes are read and not used
    assert (most + FOURS_AT_ONCE) * FOUR_BYTES <= length, tile
    return length + 16 * tile.stages(layout)


@cache
def cluster_partial_sender(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function for the partial sums of a work unit: it sends them to the cluster, or stores them
    if there is none.
    """
    store_alone, send, back = partial_storer(tile), thread_sums(tile.columns).send, inbox_offset(layout, tile)
    fours, counts = tile.columns // 8, counts_bytes(tile.columns)

    @inlined
    def send_partial(
        sums: Any, outputs: Any, number: Any, first: Any, rank: Any, wave: Any, scratch: Any
    ) -> None:
        count = hopper.cluster_size()
        if count == 1:
            store_alone(sums, outputs, number, first, rank, wave, scratch)
        else:
            # A relaxed arrival: this thread has read its stages and written nothing that others read.
            hopper.arrive_at_cluster_relaxed()
            which, last = uint32(rank % count), uint32(fours - 1 + count)
            thread, inbox = uint32(cuda.threadIdx.x), uint32(scratch + INBOX_BARRIER)
            if counts and thread == 0:
                fours_here = uint32(uint32(last - which) // count)
                hopper.expect(inbox, uint32(uint32(fours_here * count) * FOUR_BYTES))
            place = uint32(which * uint32(last // count) * FOUR_BYTES)
            at = uint32(uint32(scratch - back) + place + uint32(thread << 4))
            # Inboxes lie where stages were: before all blocks are here, one may still multiply from them.
            hopper.wait_for_cluster()
            send(sums, at, uint32(FOUR_BYTES), count, inbox)

    return send_partial


def cluster_epilogue(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any) -> Any:
    """The device function for the end of a block: it adds up its inbox; where there is no cluster it
    finishes slices from global memory.
    """
    finish_alone, back = split_epilogue(tile, locate, False), inbox_offset(layout, tile)
    fours = tile.columns // 8
    total_sums, counts = 4 * FOURS_AT_ONCE, counts_bytes(tile.columns)
    load_bias, store = results.bias_loader(), results.store_result

    @inlined
    def finish(
        outputs: Any, tile_order: Any, thread_at: Any, n: Any, stages: Any, rank: Any, wave: Any, scratch: Any
    ) -> None:
        count = hopper.cluster_size()
        if count == 1:
            finish_alone(outputs, tile_order, thread_at, n, stages, rank, wave, scratch)
        elif rank < wave.split_blocks:
            number, y, total = uint32(rank // count), outputs.y, cuda.local.array(total_sums, float32)
            place = locate(tile_order, uint32(wave.whole_tiles + number), thread_at)
            row, column = place.row, place.column
            low, high = load_bias(y, row, n), load_bias(y, uint32(row + 8), n)
            partial_bytes = uint32(uint32(uint32(fours - 1 + count) // count) * FOUR_BYTES)
            at = uint32(uint32(scratch - back) + uint32(uint32(cuda.threadIdx.x) << 4))
            four = uint32(rank - uint32(number * count))
            # All that the cluster sends to this inbox has arrived: by its bytes, or because all have sent.
            if counts:
                hopper.wait(uint32(scratch + INBOX_BARRIER), uint32(0))
            else:
                hopper.sync_cluster()
            while four < fours:
                part, there = uint32(0), at
                for i in range(total_sums):
                    total[i] = float32(0)
                while part < count:
                    for i in range(FOURS_AT_ONCE):
                        v = ptx.take_floats(uint32(there + uint32(i * FOUR_BYTES)))
                        for e in range(4):
                            total[4 * i + e] += v[e]
                    there, part = uint32(there + partial_bytes), uint32(part + 1)
                for i in range(FOURS_AT_ONCE):
                    if four < fours:
                        for e in range(4):
                            c = uint32(column + uint32(four << 3) + uint32(e & 1))
                            r = uint32(row + uint32(8 * (e >> 1)))
                            if c < place.limit and r < n:
                                store(y, c, r, n, total[4 * i + e] + (high if e > 1 else low))
                    four = uint32(four + count)
                at = uint32(at + FOURS_AT_ONCE * FOUR_BYTES)

    return finish
