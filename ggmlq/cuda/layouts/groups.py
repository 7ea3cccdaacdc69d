"""A plan for products with experts, made on the GPU: uses sorted by expert, a column of a tile for each use.

A *use* is a number t · U + u: token t is multiplied by the u-th of its U experts. Uses of one expert lie
side by side in the x_tiles (x_tiles.py), each expert from a whole tile on. A *slot* is
the place of a tile of ``columns`` uses. One block, or a few, look at all ids and write a plan, words of 32
bits (for few uses each block makes one for itself, below):

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
from ..intrinsics import bf16x2, hopper, ptx
from ..intrinsics import lane as lanes
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import LEAST
from ..intrinsics.lane import address, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from .floats import sixteen_loader
from .x_tiles import THREAD_COLUMNS, chunk_placer, chunk_swapper

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
    load8 = ptx.load8_l2 if uncached else ptx.load8

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
    expert_of_use, equal, ones, put = expert_of(), lanes.lanes_where_equal, lanes.count, ptx.put4

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
    put, take4, from_lane, sum_up_to = ptx.put4, ptx.take4, lanes.from_lane, lanes.sum_up_to

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
    take4, store16 = ptx.take4, ptx.store16

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
    put, take4, store4, load4 = ptx.put4, ptx.take4, ptx.store4, ptx.load4
    sync_cluster = hopper.sync_cluster

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
    expert_of_use, put, store4, add = expert_of(), ptx.put4, ptx.store4, lanes.add_shared

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
                    store4(places + use * 4, ranks[i])

    return count


@cache
def column_assigner() -> Any:
    """The device function that gives each of a block's uses its column; ``use_experts``, ``ranks``: as in
    use_counter().

    ``firsts``, ``befores``, ``begins``: each expert's first slot, its uses in the blocks before, and its
    first use, which counts if uses are in order.
    """
    expert_of_use, take4, store4, load4 = expert_of(), ptx.take4, ptx.store4, ptx.load4

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
                        ranks[i] = load4(places + use * 4)
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                at = places + use * 4
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
    base, put, take4, store4 = ptx.shared_base, ptx.put4, ptx.take4, ptx.store4
    wait_for_predecessor, let_successor_start, exchange_counts = (
        hopper.wait_for_predecessor, hopper.let_successor_start, count_exchanger(),
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


# A plan of the tiles of experts for up to 1024 uses, which every block makes for itself.
#
#     entries   [experts + 1]    first slot << 16 | uses; in the last one, the number of slots
#
# It takes a block a microsecond or two to read all ids. A kernel that does it for all, and the wait of the
# next kernel for its end, take five. So the kernel that gathers rows (below) and the one
# that multiplies (kernels/hopper/experts.py) each find the expert of a slot themselves. A use gets the
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
    put, take4, add = ptx.put4, ptx.take4, lanes.add_shared

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
    put, take4, from_lane, sum_up_to = ptx.put4, ptx.take4, lanes.from_lane, lanes.sum_up_to

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


class SlotEntry(NamedTuple):
    """The facts that a block learns of its slot."""

    expert: Any
    first: Any  # the expert's first slot
    slots: Any  # of the expert
    uses: Any  # of the expert


@cache
def entry_finder() -> Any:
    """The device function for the entry of a slot."""
    take4 = ptx.take4

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
        return SlotEntry(low, first, uint32(uint32(after >> 16) - first), uint32(entry & 0xFFFF))

    return find


@cache
def column_ranker() -> Any:
    """The device function by which a warp finds the column of a use: its expert's first column plus its rank.

    ``experts_at``: the experts of all uses; the use must have one.
    """
    equal, ones, take4 = lanes.lanes_where_equal, lanes.count, ptx.take4

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


# Activations of experts as x_tiles of bfloat16: each row at the places of its uses in a plan.
#
# The plan is that of this file, also for few uses. The layout is that of all x_tiles. A row is
# read once and written for each of its uses. Rows without a use hold anything; their sums are never read.

GATHER_THREADS = 256  # of a block


@family()
def x_tile_gatherer() -> Kernel:
    """The kernel that gathers rows by a plan in memory, 16 columns a thread.

    Uses without an expert get rows of NaN. It also clears ``count`` words for the next kernel.
    """
    load_floats, narrow, load4 = ptx.load_floats_l2_if, bf16x2.narrowed, ptx.load4
    pair, place, store4 = chunk_swapper(), chunk_placer(), ptx.store4
    let_successor_start, wait_for_predecessor = (
        hopper.let_successor_start, hopper.wait_for_predecessor,
    )  # fmt: skip

    def gather(
        x: Any,  # float32 [m, k]
        x_tiles: Any,
        places: Any,  # uint32 [m · per_token]: of a plan
        y: Any,  # float32 [m · per_token, n]
        zeros: Any, count: Any,  # uint32 [count], for the next kernel
        m: Any, per_token: Any, k: Any, n: Any, sixteens: Any, height: Any,  # sixteens: of a row
    ) -> None:  # fmt: skip
        i = uint32(uint32(cuda.blockIdx.x) * GATHER_THREADS + uint32(cuda.threadIdx.x))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column = uint32(sixteen * THREAD_COLUMNS)
        inside = uint32(1) if row < m and column < k else uint32(0)
        # What made x had ended when the plan was begun; but this multiprocessor's first cache may be older.
        for t in range(4):
            v = load_floats(address(x, row, k, uint32(column + uint32(4 * t)), 4), inside)
            a[t], b[t] = narrow(v[0], v[1]), narrow(v[2], v[3])
        pair(sixteen, a, b)
        wait_for_predecessor()
        let_successor_start()  # not before: it reads the plan as soon as it starts
        if i < count:
            store4(zeros + uint64(i) * 4, uint32(0))
        if row < m:
            use = uint32(row * per_token)
            end = uint32(use + per_token)
            while use < end:
                there = load4(places + uint64(use) * 4)
                if there != NOWHERE:
                    place(x_tiles, sixteen, height, there, a, b)
                else:
                    for j in range(sixteen, n, sixteens):
                        store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + 1)

    return Kernel(
        "rows of experts to x_tiles", gather, *(uint64,) * 5, *(uint32,) * 7, threads=GATHER_THREADS,
        least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


@family()
def few_x_tile_gatherer() -> Kernel:
    """The kernel that gathers rows for few uses: each block makes the plan for itself."""
    load, pair, place, rank = sixteen_loader(), chunk_swapper(), chunk_placer(), column_ranker()
    plan = planner(GATHER_THREADS, stores_experts=True)
    base, put, store4, take4 = ptx.shared_base, ptx.put4, ptx.store4, ptx.take4
    let_successor_start, wait_for_predecessor = (
        hopper.let_successor_start, hopper.wait_for_predecessor,
    )  # fmt: skip

    def gather(
        x: Any,  # float32 [m, k]
        ids: Any,  # int64 [m · per_token]
        x_tiles: Any,
        uses_of_columns: Any,  # uint32 [height]
        y: Any,  # float32 [m · per_token, n]
        zeros: Any, count: Any,  # uint32 [count], for the next kernel
        m: Any, per_token: Any, k: Any, n: Any, sixteens: Any, height: Any,  # sixteens: of a row
        experts: Any, columns: Any,  # of a tile
    ) -> None:  # fmt: skip
        wait_for_predecessor()
        let_successor_start()  # not before: it reads ids as soon as it starts
        (warp, lane), entries = warp_and_lane(), base()
        experts_at, places = uint32(entries + BYTES), uint32(entries + (BYTES + 4 * MOST_USES))
        first = uint32(uint32(cuda.blockIdx.x) * GATHER_THREADS)
        i = uint32(first + uint32(cuda.threadIdx.x))
        if i < count:
            store4(zeros + uint64(i) * 4, uint32(0))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for t in range(4):
            a[t] = b[t] = uint32(0)
        column = uint32(sixteen * THREAD_COLUMNS)
        if row < m and column < k:
            load(address(x, row, k, column, 4), a, b)
        pair(sixteen, a, b)
        plan(entries, experts_at, ids, uint32(m * per_token), experts, columns)
        begin = uint32(uint32(first // sixteens) * per_token)
        last = min(uint32(uint32(first + (GATHER_THREADS - 1)) // sixteens), uint32(m - 1))
        for number in range(uint32(begin + warp), uint32(uint32(last + 1) * per_token), GATHER_THREADS // 32):
            use, to = uint32(number), uint32(NOWHERE)
            expert = take4(uint32(experts_at + use * 4))
            if expert != NO_EXPERT:
                to = rank(entries, experts_at, use, expert, columns, lane)
            if lane == 0:
                put(uint32(places + uint32(use - begin) * 4), to)
                if to != NOWHERE:
                    store4(uses_of_columns + uint64(to) * 4, use)
        cuda.syncthreads()
        if row < m:
            for use in range(uint32(row * per_token), uint32(uint32(row + 1) * per_token)):
                there = take4(uint32(places + uint32(uint32(use) - begin) * 4))
                if there != NOWHERE:
                    place(x_tiles, sixteen, height, there, a, b)
                else:
                    for j in range(sixteen, n, sixteens):
                        store4(address(y, uint32(use), n, j, 4), uint32(NAN))

    return Kernel(
        "rows of a few uses to x_tiles", gather, *(uint64,) * 6, *(uint32,) * 9, threads=GATHER_THREADS,
        shared=BYTES + 8 * MOST_USES, least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


# The kernel that copies rows of 8-bit codes of x to the places of their uses in a plan.
#
# A row of codes is read once and written for each of its uses, 64 bytes a thread. So are the words that
# belong to it: scales of its groups along K or, for integers, its scale and its zero-point terms. Rows of the
# plan without a use hold anything; their sums are never read. Where each row has one use, and uses are in
# order, rows stay where they are, and only those words are written.

CHUNK, CHUNKS = 16, 4  # codes that are loaded at a time; of a thread
WORDS = CHUNKS * CHUNK // 4
NARROW_NAN = 0x7FFF  # of float16 and of bfloat16


@family()
def code_gatherer() -> Kernel:
    """The kernel that gathers rows of codes and the words beside them; uses without an expert get rows of
    NaN.
    """
    load_words, load4, take_turn = ptx.load_words, ptx.load4, hopper.take_turn
    store16, store4, store2 = ptx.store16, ptx.store4, ptx.store2

    def gather(
        x: Any,  # codes: rows ``pitch`` bytes apart, a multiple of 16
        to: Any,  # uint8 [rows of the plan, 16 · chunks]
        beside: Any,  # words of 32 bits that belong to rows,
        row_bytes: Any, column_bytes: Any,  # and the bytes between them
        to_beside: Any,  # [columns, height]
        plan: Any, places: Any,  # uint32 [m · per_token]: of the plan
        y: Any,  # outputs [m · per_token, n]
        pitch: Any, m: Any, per_token: Any, n: Any, chunks: Any,
        threads: Any,  # of a row, and the distance between a thread's chunks
        size: Any,  # bytes of an output
        shared: Any,  # rows of x that share the words beside them
        columns: Any, height: Any,  # rows of the plan
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * GATHER_THREADS + uint32(cuda.threadIdx.x))
        row = uint32(i // threads)
        if row < m:
            first_chunk, v = uint32(i - uint32(row * threads)), cuda.local.array(WORDS, uint32)
            stay = per_token == 1 and load4(plan + 4) != 0
            if not stay:
                for q in range(CHUNKS):
                    chunk = min(uint32(first_chunk + uint32(uint32(q) * threads)), uint32(chunks - 1))
                    words = load_words(x + uint64(row) * pitch + uint64(chunk) * CHUNK)
                    at = 4 * q
                    v[at], v[at + 1], v[at + 2], v[at + 3] = words[0], words[1], words[2], words[3]
            row_beside = beside + uint32(row // shared) * row_bytes
            use = uint32(row * per_token)
            end = uint32(use + per_token)
            while use < end:
                column = load4(places + uint64(use) * 4)
                if column != NOWHERE:
                    if not stay:
                        for q in range(CHUNKS):
                            chunk, at = uint32(first_chunk + uint32(uint32(q) * threads)), 4 * q
                            if chunk < chunks:
                                target = address(to, column, chunks, chunk, CHUNK)
                                store16(target, v[at], v[at + 1], v[at + 2], v[at + 3])
                    for j in range(first_chunk, columns, threads):
                        word = load4(row_beside + j * column_bytes)
                        store4(address(to_beside, j, height, column, 4), word)
                else:
                    for j in range(first_chunk, n, threads):
                        if size == 2:
                            store2(address(y, use, n, j, 2), uint32(NARROW_NAN))
                        else:
                            store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + 1)

    return Kernel(
        "rows of codes of experts", gather, *(uint64,) * 9, *(uint32,) * 10,
        threads=GATHER_THREADS, early=True,
    )  # fmt: skip
