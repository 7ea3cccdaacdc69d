"""A plan for products with experts, made on the GPU: uses sorted by expert, a column of a tile for each use.

A *use* is a number t · U + u: token t is multiplied by the u-th of its U experts. Uses of one expert lie
side by side in the x_tiles (layouts/x_tiles.py), each expert from a whole tile on. A *slot* is
the place of a tile of ``columns`` uses. One block, or a few, look at all ids and write a plan, words of 32
bits (for few uses groups.py does without it):

    slots         how many there are, whether uses are in order, and two unused words
    table         [slots][expert, its first slot, its slots, its uses]
    uses          [slots · columns]: the use of a column; anything where there is none
    places        [uses]: the column of a use, NOWHERE if its id is no expert
    block_counts  [blocks][experts + 1]: the uses that each block counted, and whether they are out of order

Uses are in order where those of an expert follow each other, the first expert's first, and none is lost.
Then the uses of a slot are neighbours, and their rows need not be gathered. Otherwise the column that a use
gets may change from run to run; its result does not depend on it.
"""

from __future__ import annotations

from functools import cache
from math import erf, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..driver import device
from ..driver.launch import Kernel, family
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes, dependent_launch, integers, ptx
from ..intrinsics import lane as lanes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64

# Uses of experts, for products with few tokens: each block finds the uses that it serves, and their expert.
#
# A *use* is a number t · U + u: token t is multiplied by the u-th of its U experts. cuda:gemv and
# cuda:small_m_codes start a block for each use. It serves that use and the next ones of the same expert, up
# to as many as the kernel has columns. Blocks whose use is served by an earlier block end at once. So every
# block finds its work without the host, and an expert's weights are read once for a few tokens.
#
# Every warp looks for itself: it reads all ids, up to 32 a lane.

IDS_PER_LANE = 2, 8  # ids that a lane reads: kernels for up to 64 and 256 uses
MOST_LISTED = 32 * IDS_PER_LANE[-1]
NO_EXPERT, NO_USE = 0xFFFFFFFF, 0xFFFFFFFE
NAN = 0x7FC00000  # bits of a float32


@cache
def expert_of(uncached: bool = False) -> Any:
    """The device function for the expert of a use, NO_EXPERT where its id, an int64, names none.

    ``uncached``: for blocks that start before the previous kernel ends, whose first cache may hold older ids.
    """
    load8 = integers.load8_l2 if uncached else bf16x2.load8

    @inlined
    def expert(ids: Any, use: Any, experts: Any) -> Any:
        words = load8(ids + uint64(use) * 8)
        return words[0] if words[1] == 0 and words[0] < experts else NO_EXPERT

    return expert


@cache
def finder(columns: int, ids_per_lane: int) -> Any:
    """The device function that lists the uses of a warp at an address of shared memory.

    It returns how many uses there are, none if an earlier block serves them, and the expert.
    """
    expert_of_use, equal, ones, put = expert_of(), lanes.lanes_where_equal, lanes.count, ptx.put

    @inlined
    def find(at: Any, ids: Any, use: Any, uses: Any, experts: Any, lane: Any) -> Any:
        expert, others = expert_of_use(ids, use, experts), cuda.local.array(ids_per_lane, uint32)
        for i in range(ids_per_lane):
            others[i] = uint32(NO_USE)
            if lane + uint32(32 * i) < uses:
                others[i] = expert_of_use(ids, lane + uint32(32 * i), experts)
        until = uint32(uint32(1 << (use & 31)) - 1)
        below = uint32(uint32(1 << lane) - 1)
        count = before = uint32(0)
        for i in range(ids_per_lane):
            here = equal(others[i], expert)
            if use >> 5 == uint32(i):
                before = uint32(count + ones(here & until))
            place = uint32(uint32(count + ones(here & below)) - before)  # enormous for uses before this one
            if use >> 5 <= uint32(i) and others[i] == expert and place < columns:
                put(at + place * 4, lane + uint32(32 * i))
            count = uint32(count + ones(here))
        cuda.syncwarp()
        served = min(uint32(count - before), uint32(columns))
        return (served if before % columns == 0 else 0), expert

    return find


THREADS, THREAD_IDS = 1024, 8  # of the block; ids that a thread reads together
MOST = 4096  # experts
MOST_BLOCKS, LEAST_USES = 8, 1024  # of the cluster; uses of a block, at least
NOWHERE = 0xFFFFFFFF
HEAD = 4  # words before the table


class UsePlan(NamedTuple):
    """The sizes of a plan."""

    uses: int
    experts: int
    columns: int  # of a tile
    alone: bool = False  # one block makes it: clusters are Hopper's

    @property
    def slots(self) -> int:
        """The most slots that there can be: an expert's last tile may have a single use."""
        return (self.uses + min(self.uses, self.experts) * (self.columns - 1)) // self.columns

    @property
    def height(self) -> int:
        """Columns of all slots: rows of the x_tiles."""
        return self.slots * self.columns

    @property
    def places(self) -> int:
        """Offset of the places, in words."""
        return HEAD + 4 * self.slots + self.height

    @property
    def blocks(self) -> int:
        """Blocks of the cluster that makes the plan."""
        return 1 if self.alone else max(1, min(MOST_BLOCKS, self.uses // LEAST_USES))

    @property
    def words(self) -> int:
        return self.places + self.uses + ((self.experts + 1) * self.blocks if self.blocks > 1 else 0)


def expected_slots(tokens: int, used: int, experts: int, columns: int) -> float:
    """The slots of an expert on average: it has one more wherever its uses exceed those that the slots
    before hold.
    """
    mean = tokens * used / experts
    deviation = sqrt(mean * max(1 - used / experts, 0)) or 1e-6
    most = int((mean + 4 * deviation) // columns) + 1
    return sum(0.5 - 0.5 * erf((i * columns + 0.5 - mean) / deviation / sqrt(2)) for i in range(most))


@cache
def slot_counter() -> Any:
    """The device function by which a warp finds each expert's first slot and the number of slots; and each
    expert's first use, which counts if uses are in order.
    """
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, lanes.from_lane, lanes.sum_up_to

    @inlined
    def count_slots(counts: Any, firsts: Any, begins: Any, experts: Any, columns: Any, lane: Any) -> Any:
        total, uses, first = uint32(0), uint32(0), uint32(0)
        while first < experts:
            expert, count = uint32(first + lane), uint32(0)
            if expert < experts:
                count = take4(counts + expert * 4)
            expert_slots = uint32((count + columns - 1) // columns)
            up_to, uses_to = sum_up_to(expert_slots, lane), sum_up_to(count, lane)
            if expert < experts:
                put(firsts + expert * 4, uint32(uint32(total + up_to) - expert_slots))
                put(begins + expert * 4, uint32(uint32(uses + uses_to) - count))
            total, uses = (
                uint32(total + from_lane(up_to, uint32(31))), uint32(uses + from_lane(uses_to, uint32(31))),
            )  # fmt: skip
            first = uint32(first + 32)
        if lane == 0:
            put(firsts + experts * 4, total)
        return total

    return count_slots


@cache
def table_writer() -> Any:
    """The device function that writes the table: each thread of all blocks looks for the experts of some
    slots.
    """
    take4, store16 = bf16x2.take4, ptx.store16

    @inlined
    def write_table(counts: Any, firsts: Any, experts: Any, table: Any, thread: Any, blocks: Any) -> None:
        slots = take4(firsts + experts * 4)
        for number in range(thread, slots, uint32(blocks * THREADS)):
            slot, low, high = uint32(number), uint32(0), experts
            while high - low > 1:
                middle = uint32(uint32(low + high) >> 1)
                if take4(firsts + middle * 4) <= slot:
                    low = middle
                else:
                    high = middle
            at = firsts + low * 4
            first, end = take4(at), take4(at + 4)
            to = table + uint64(slot) * 16
            store16(to, low, first, uint32(end - first), take4(counts + low * 4))

    return write_table


@cache
def count_exchanger() -> Any:
    """The device function by which the blocks of a cluster exchange their counts, in memory.

    Afterwards ``counts`` are those of all blocks, and ``befores`` those of the blocks before.
    """
    put, take4, store4, load4 = ptx.put, bf16x2.take4, ptx.store4, codes.load4
    sync_cluster = barriers.sync_cluster

    @inlined
    def exchange(counts: Any, befores: Any, block_counts: Any, entries: Any, rank: Any, blocks: Any) -> None:
        for entry in range(uint32(cuda.threadIdx.x), entries, uint32(THREADS)):
            at = block_counts + uint64(uint32(rank * entries) + uint32(entry)) * 4
            store4(at, take4(counts + uint32(entry) * 4))
        sync_cluster()
        for entry in range(uint32(cuda.threadIdx.x), entries, uint32(THREADS)):
            before, total = uint32(0), uint32(0)
            for block in range(uint32(0), blocks):
                if uint32(block) == rank:
                    before = total
                at = block_counts + uint64(uint32(uint32(block) * entries) + uint32(entry)) * 4
                total = uint32(total + load4(at))
            put(counts + uint32(entry) * 4, total)
            put(befores + uint32(entry) * 4, before)
        cuda.syncthreads()

    return exchange


@cache
def use_counter() -> Any:
    """The device function by which a block counts the uses of each expert, and finds out whether they are
    in order.

    ``use_experts``, ``ranks``: the experts of the uses that a thread read last, and how many uses of the
    same expert were counted before each. Blocks with more uses than their threads hold keep ranks in
    ``places``.
    """
    expert_of_use, put, store4, add = expert_of(), ptx.put, ptx.store4, lanes.add_shared

    @inlined
    def count(
        ids: Any, counts: Any, disorder: Any, places: Any, use_experts: Any, ranks: Any, begin: Any,
        end: Any, uses: Any, experts: Any, reads_again: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        for first in range(begin, end, uint32(THREADS * THREAD_IDS)):
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                use_experts[i] = expert_of_use(ids, use, experts) if use < end else NO_EXPERT
                # until it is counted, a rank is the next use's expert, which may not be smaller
                ranks[i], use = uint32(NO_EXPERT), uint32(use + 1)
                if use <= end and use < uses:
                    ranks[i] = expert_of_use(ids, use, experts)
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                if use < end and (use_experts[i] > ranks[i] or use_experts[i] == NO_EXPERT):
                    put(disorder, uint32(1))
                if use_experts[i] != NO_EXPERT:
                    ranks[i] = add(counts + use_experts[i] * 4, uint32(1))
                if reads_again and use < end:
                    store4(places + use * uint64(4), ranks[i])

    return count


@cache
def column_assigner() -> Any:
    """The device function that gives each of a block's uses its column; ``use_experts``, ``ranks``: as in
    use_counter().

    ``firsts``, ``befores``, ``begins``: each expert's first slot, its uses in the blocks before, and its
    first use, which counts if uses are in order.
    """
    expert_of_use, take4, store4, load4 = expert_of(), bf16x2.take4, ptx.store4, codes.load4

    @inlined
    def assign(
        ids: Any, firsts: Any, befores: Any, begins: Any, uses_of_columns: Any, places: Any, use_experts: Any,
        ranks: Any, begin: Any, end: Any, experts: Any, columns: Any, reads_again: Any, in_order: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        for first in range(begin, end, uint32(THREADS * THREAD_IDS)):
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                if reads_again:
                    use_experts[i] = expert_of_use(ids, use, experts) if use < end else NO_EXPERT
                    if use_experts[i] != NO_EXPERT:
                        ranks[i] = load4(places + use * uint64(4))
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                at = places + use * uint64(4)
                if use_experts[i] != NO_EXPERT:
                    expert = use_experts[i] * 4
                    to = uint32(take4(firsts + expert) * columns)
                    if in_order:
                        to = uint32(to + uint32(use - take4(begins + expert)))
                    else:
                        to = uint32(uint32(to + take4(befores + expert)) + ranks[i])
                    store4(at, to)
                    store4(uses_of_columns + uint64(to) * 4, use)
                elif use < end:
                    store4(at, uint32(NOWHERE))

    return assign


@family()
def grouper() -> Kernel:
    """The kernel that makes a plan: one block or a cluster, each block for some of the uses."""
    count_slots, write_table, count, assign = slot_counter(), table_writer(), use_counter(), column_assigner()
    base, put, take4, store4 = ptx.shared_base, ptx.put, bf16x2.take4, ptx.store4
    wait_for_predecessor, let_successor_start, exchange_counts = (
        dependent_launch.wait_for_predecessor, dependent_launch.let_successor_start, count_exchanger(),
    )  # fmt: skip

    def group(
        ids: Any,  # int64 [uses]
        plan: Any,
        places: Any, block_counts: Any,  # of the plan
        uses: Any, experts: Any, columns: Any, slots: Any,
    ) -> None:  # fmt: skip
        wait_for_predecessor()
        let_successor_start()  # not before: it reads rows of x as soon as it starts
        (warp, lane), thread = warp_and_lane(), uint32(cuda.threadIdx.x)
        rank, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        entries, table = uint32(experts + 1), plan + 4 * HEAD
        counts, uses_of_columns = base(), table + uint64(slots) * 16
        disorder, befores = counts + experts * 4, counts + entries * 4
        firsts, begins = befores + entries * 4, befores + entries * 8
        block_uses = uint32(uint32(uses + uint32(blocks - 1)) // blocks)
        begin = min(uint32(rank * block_uses), uses)
        end = min(uint32(begin + block_uses), uses)
        for entry in range(thread, entries, uint32(THREADS)):
            put(counts + uint32(entry) * 4, uint32(0))
            put(befores + uint32(entry) * 4, uint32(0))
        cuda.syncthreads()
        use_experts, ranks = cuda.local.array(THREAD_IDS, uint32), cuda.local.array(THREAD_IDS, uint32)
        reads_again = block_uses > THREADS * THREAD_IDS  # threads hold their last uses alone
        count(ids, counts, disorder, places, use_experts, ranks, begin, end, uses, experts, reads_again)
        cuda.syncthreads()
        if blocks > 1:
            exchange_counts(counts, befores, block_counts, entries, rank, blocks)
        in_order = take4(disorder) == 0
        if warp == 0:
            total = count_slots(counts, firsts, begins, experts, columns, lane)
            if lane == 0:
                store4(plan, total)
                store4(plan + 4, uint32(1) if in_order else uint32(0))
        cuda.syncthreads()
        write_table(counts, firsts, experts, table, uint32(rank * THREADS) + thread, blocks)
        assign(
            ids, firsts, befores, begins, uses_of_columns, places, use_experts, ranks, begin, end, experts,
            columns, reads_again, in_order,
        )  # fmt: skip

    sizes: dict[str, Any] = {"threads": THREADS, "shared": 16 * (MOST + 1), "least": (8, 0)}
    return Kernel("uses by expert", group, *(uint64,) * 4, *(uint32,) * 4, early=True, **sizes)


def sorted_uses(ids: Any, shape: UsePlan) -> tuple[Any, Any]:
    """The plan for the ids of the experts of all tokens, and the part of it with the places."""
    plan = device.cupy().empty(shape.words, np.uint32)
    places, blocks = plan[shape.places :], shape.blocks
    operands = ids, plan, places, places[shape.uses :] if blocks > 1 else 0
    sizes = shape.uses, shape.experts, shape.columns, shape.slots
    grouper()((blocks,), (THREADS,), *operands, *sizes, cluster=blocks)
    return plan, places


# A plan of the tiles of experts for up to 1024 uses, which every block makes for itself; cf. groups.py.
#
#     entries   [experts + 1]    first slot << 16 | uses; in the last one, the number of slots
#
# It takes a block a microsecond or two to read all ids. A kernel that does it for all, and the wait of the
# next kernel for its end, take five. So the kernel that gathers rows (layouts/x_tiles.py) and the one
# that multiplies (warp_specialized/schedules.py) each find the expert of a slot themselves. A use gets the
# column of its rank among the ids of its expert, the same in every run.

MOST_USES, MOST_EXPERTS = 1024, 256
AT_ONCE = 4  # ids that a thread reads together
BYTES = -(-4 * (MOST_EXPERTS + 1) // 16) * 16  # of entries


@cache
def planner(threads: int, stores_experts: bool) -> Any:
    """The device function by which a block of ``threads`` threads makes the entries; it returns the number
    of slots.

    ``stores_experts``: the expert of each use is stored, from ``experts_at`` on.
    """
    expert_of_use, count_slots = expert_of(uncached=True), block_slot_counter()
    put, take4, add = ptx.put, bf16x2.take4, lanes.add_shared

    @inlined
    def plan(entries: Any, experts_at: Any, ids: Any, uses: Any, experts: Any, columns: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        entry, first = thread, thread
        while entry <= experts:
            put(uint32(entries + entry * 4), uint32(0))
            entry = uint32(entry + threads)
        cuda.syncthreads()
        use_experts = cuda.local.array(AT_ONCE, uint32)
        while first < uses:
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                use_experts[i] = expert_of_use(ids, use, experts) if use < uses else NO_EXPERT
            for i in range(AT_ONCE):
                use = uint32(first + uint32(i * threads))
                if use_experts[i] != NO_EXPERT:
                    add(uint32(entries + use_experts[i] * 4), uint32(1))
                if stores_experts and use < uses:
                    put(uint32(experts_at + use * 4), use_experts[i])
            first = uint32(first + threads * AT_ONCE)
        cuda.syncthreads()
        count_slots(entries, experts, columns)
        cuda.syncthreads()
        return uint32(take4(uint32(entries + experts * 4)) >> 16)

    return plan


@cache
def block_slot_counter() -> Any:
    """The device function by which one warp adds the first slot of each expert to the expert's entry."""
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, lanes.from_lane, lanes.sum_up_to

    @inlined
    def count_slots(entries: Any, experts: Any, columns: Any) -> None:
        warp, lane = warp_and_lane()
        if warp == 0:
            total, first = uint32(0), uint32(0)
            while first < experts:
                expert, count = uint32(first + lane), uint32(0)
                at = uint32(entries + expert * 4)
                if expert < experts:
                    count = take4(at)
                slots_of_expert = uint32(uint32(count + uint32(columns - 1)) // columns)
                up_to = sum_up_to(slots_of_expert, lane)
                if expert < experts:
                    first_slot = uint32(total + uint32(up_to - slots_of_expert))
                    put(at, uint32(uint32(first_slot << 16) | count))
                total, first = uint32(total + from_lane(up_to, uint32(31))), uint32(first + 32)
            if lane == 0:
                put(uint32(entries + experts * 4), uint32(total << 16))

    return count_slots


@cache
def entry_finder() -> Any:
    """The device function for a slot's expert, and that expert's first slot, slots and uses."""
    take4 = bf16x2.take4

    @inlined
    def find(entries: Any, slot: Any, experts: Any) -> Any:
        low, high = uint32(0), experts
        while uint32(high - low) > 1:
            middle = uint32(uint32(low + high) >> 1)
            if uint32(take4(uint32(entries + middle * 4)) >> 16) <= slot:
                low = middle
            else:
                high = middle
        at = uint32(entries + low * 4)
        entry, after = take4(at), take4(uint32(at + 4))
        first = uint32(entry >> 16)
        return low, first, uint32(uint32(after >> 16) - first), uint32(entry & 0xFFFF)

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
                other = take4(uint32(experts_at + there * 4))
            earlier = uint32(earlier + ones(equal(other, expert)))
            first = uint32(first + 32)
        slot = uint32(take4(uint32(entries + expert * 4)) >> 16)
        return uint32(uint32(slot * columns) + earlier)

    return rank
