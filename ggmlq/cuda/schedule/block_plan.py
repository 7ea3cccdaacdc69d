"""A plan of a thousand uses at most, which every block makes for itself: what groups.py writes to memory.

    entries   [experts + 1]    first slot << 16 | uses; of the one beyond the last, how many slots there are

Looking at all ids takes a block a microsecond or two; a kernel that does it for all, and the next one's wait
for its end, take five. So rows are gathered (activations/expert_x_tiles.py) and weights are fetched
(grouped.py) by kernels that each find out where a slot's expert is. Which of an expert's columns a use gets
is its rank among all ids, the same in every run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..gemv.uses import NO_EXPERT
from ..intrinsics import bf16x2, integers, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64

MOST_USES, MOST_EXPERTS = 1024, 256
AT_ONCE = 4  # ids that a thread asks for together
BYTES = -(-4 * (MOST_EXPERTS + 1) // 16) * 16  # of entries


@cache
def expert_as_it_is() -> Any:
    """The device function for the expert of a use, for blocks that start early.

    The first cache may still have what the ids of a product before were.
    """
    load8 = integers.load8_l2

    @inlined
    def expert(ids: Any, use: Any, experts: Any) -> Any:
        v = load8(ids + uint64(use) * uint64(8))
        return v[0] if v[1] == uint32(0) and v[0] < experts else uint32(NO_EXPERT)

    return expert


@cache
def planner(threads: int, keeps: bool) -> Any:
    """The device function by which a block, of so many threads, makes the entries; returns how many slots.

    ``keeps``: the expert of each use is put at ``kept``.
    """
    expert_of_use, add_up = expert_as_it_is(), adder_up()
    put, take4, add = ptx.put, bf16x2.take4, votes.add_shared

    @inlined
    def plan(entries: Any, kept: Any, ids: Any, uses: Any, experts: Any, columns: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        entry, first = uint32(thread), uint32(thread)
        while entry <= experts:
            put(uint32(entries + entry * uint32(4)), uint32(0))
            entry = uint32(entry + uint32(threads))
        cuda.syncthreads()
        found = cuda.local.array(AT_ONCE, uint32)
        while first < uses:
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                found[i] = expert_of_use(ids, use, experts) if use < uses else uint32(NO_EXPERT)
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                if found[i] != uint32(NO_EXPERT):
                    add(uint32(entries + found[i] * uint32(4)), uint32(1))
                if keeps and use < uses:
                    put(uint32(kept + use * uint32(4)), found[i])
            first = uint32(first + uint32(threads * AT_ONCE))
        cuda.syncthreads()
        add_up(entries, experts, columns)
        cuda.syncthreads()
        return uint32(take4(uint32(entries + experts * uint32(4))) >> uint32(16))

    return plan


@cache
def adder_up() -> Any:
    """The device function by which one warp puts above each expert's uses where its slots begin."""
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, votes.from_lane, votes.sum_up_to

    @inlined
    def add_up(entries: Any, experts: Any, columns: Any) -> None:
        warp, lane = warp_and_lane()
        if warp == uint32(0):
            total, first = uint32(0), uint32(0)
            while first < experts:
                expert, count = uint32(first + lane), uint32(0)
                at = uint32(entries + expert * uint32(4))
                if expert < experts:
                    count = uint32(take4(at))
                own = uint32(uint32(count + uint32(columns - uint32(1))) // columns)
                up_to = sum_up_to(own, lane)
                if expert < experts:
                    put(at, uint32(uint32(uint32(total + uint32(up_to - own)) << uint32(16)) | count))
                total, first = uint32(total + from_lane(up_to, uint32(31))), uint32(first + uint32(32))
            if lane == uint32(0):
                put(uint32(entries + experts * uint32(4)), uint32(total << uint32(16)))

    return add_up


@cache
def entry_finder() -> Any:
    """The device function for a slot's expert, the expert's first slot, its slots, its uses."""
    take4 = bf16x2.take4

    @inlined
    def find(entries: Any, slot: Any, experts: Any) -> Any:
        low, high = uint32(0), experts
        while uint32(high - low) > uint32(1):
            middle = uint32(uint32(low + high) >> uint32(1))
            if uint32(take4(uint32(entries + middle * uint32(4))) >> uint32(16)) <= slot:
                low = middle
            else:
                high = middle
        at = uint32(entries + low * uint32(4))
        own, after = uint32(take4(at)), uint32(take4(uint32(at + uint32(4))))
        first = uint32(own >> uint32(16))
        return low, first, uint32(uint32(after >> uint32(16)) - first), uint32(own & uint32(0xFFFF))

    return find


@cache
def ranker() -> Any:
    """The device function by which a warp finds the column of a use: its expert's first and its rank.

    ``kept``: the experts of all uses; the use must have one.
    """
    equal, ones, take4 = votes.lanes_where_equal, votes.count, bf16x2.take4

    @inlined
    def rank(entries: Any, kept: Any, use: Any, expert: Any, columns: Any, lane: Any) -> Any:
        found, first = uint32(0), uint32(0)
        while first < use:
            other, there = uint32(NO_EXPERT), uint32(first + lane)
            if there < use:
                other = uint32(take4(uint32(kept + there * uint32(4))))
            found = uint32(found + ones(equal(other, expert)))
            first = uint32(first + uint32(32))
        slot = uint32(take4(uint32(entries + expert * uint32(4))) >> uint32(16))
        return uint32(uint32(slot * columns) + found)

    return rank
