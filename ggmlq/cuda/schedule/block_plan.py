"""A plan of the tiles of experts for up to 1024 uses, which every block makes for itself; cf. groups.py.

    entries   [experts + 1]    first slot << 16 | uses; in the last one, the number of slots

It takes a block a microsecond or two to read all ids. A kernel that does it for all, and the wait of the
next kernel for its end, take five. So the kernel that gathers rows (activations/x_tiles.py) and the
one that multiplies (warp_specialized/schedules.py) each find the expert of a slot themselves. A use gets
the column of its rank among the ids of its expert, the same in every run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics import lane as lanes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, uint32
from .groups import NO_EXPERT, expert_of

MOST_USES, MOST_EXPERTS = 1024, 256
AT_ONCE = 4  # ids that a thread reads together
BYTES = -(-4 * (MOST_EXPERTS + 1) // 16) * 16  # of entries


@cache
def planner(threads: int, stores_experts: bool) -> Any:
    """The device function by which a block of ``threads`` threads makes the entries; it returns the number
    of slots.

    ``stores_experts``: the expert of each use is stored, from ``experts_at`` on.
    """
    expert_of_use, count_slots = expert_of(uncached=True), slot_counter()
    put, take4, add = ptx.put, bf16x2.take4, lanes.add_shared

    @inlined
    def plan(entries: Any, experts_at: Any, ids: Any, uses: Any, experts: Any, columns: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        entry, first = uint32(thread), uint32(thread)
        while entry <= experts:
            put(uint32(entries + entry * uint32(4)), uint32(0))
            entry = uint32(entry + uint32(threads))
        cuda.syncthreads()
        use_experts = cuda.local.array(AT_ONCE, uint32)
        while first < uses:
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                use_experts[i] = expert_of_use(ids, use, experts) if use < uses else uint32(NO_EXPERT)
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                if use_experts[i] != uint32(NO_EXPERT):
                    add(uint32(entries + use_experts[i] * uint32(4)), uint32(1))
                if stores_experts and use < uses:
                    put(uint32(experts_at + use * uint32(4)), use_experts[i])
            first = uint32(first + uint32(threads * AT_ONCE))
        cuda.syncthreads()
        count_slots(entries, experts, columns)
        cuda.syncthreads()
        return uint32(take4(uint32(entries + experts * uint32(4))) >> uint32(16))

    return plan


@cache
def slot_counter() -> Any:
    """The device function by which one warp adds the first slot of each expert to the expert's entry."""
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, lanes.from_lane, lanes.sum_up_to

    @inlined
    def count_slots(entries: Any, experts: Any, columns: Any) -> None:
        warp, lane = warp_and_lane()
        if warp == uint32(0):
            total, first = uint32(0), uint32(0)
            while first < experts:
                expert, count = uint32(first + lane), uint32(0)
                at = uint32(entries + expert * uint32(4))
                if expert < experts:
                    count = uint32(take4(at))
                slots_of_expert = uint32(uint32(count + uint32(columns - uint32(1))) // columns)
                up_to = sum_up_to(slots_of_expert, lane)
                if expert < experts:
                    first_slot = uint32(total + uint32(up_to - slots_of_expert))
                    put(at, uint32(uint32(first_slot << uint32(16)) | count))
                total, first = uint32(total + from_lane(up_to, uint32(31))), uint32(first + uint32(32))
            if lane == uint32(0):
                put(uint32(entries + experts * uint32(4)), uint32(total << uint32(16)))

    return count_slots


@cache
def entry_finder() -> Any:
    """The device function for a slot's expert, and that expert's first slot, slots and uses."""
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
        entry, after = uint32(take4(at)), uint32(take4(uint32(at + uint32(4))))
        first = uint32(entry >> uint32(16))
        return low, first, uint32(uint32(after >> uint32(16)) - first), uint32(entry & uint32(0xFFFF))

    return find


@cache
def column_ranker() -> Any:
    """The device function by which a warp finds the column of a use: its expert's first column plus its rank.

    ``experts_at``: the experts of all uses; the use must have one.
    """
    equal, ones, take4 = lanes.lanes_where_equal, lanes.count, bf16x2.take4

    @inlined
    def rank(entries: Any, experts_at: Any, use: Any, expert: Any, columns: Any, lane: Any) -> Any:
        earlier, first = uint32(0), uint32(0)
        while first < use:
            other, there = uint32(NO_EXPERT), uint32(first + lane)
            if there < use:
                other = uint32(take4(uint32(experts_at + there * uint32(4))))
            earlier = uint32(earlier + ones(equal(other, expert)))
            first = uint32(first + uint32(32))
        slot = uint32(take4(uint32(entries + expert * uint32(4))) >> uint32(16))
        return uint32(uint32(slot * columns) + earlier)

    return rank
