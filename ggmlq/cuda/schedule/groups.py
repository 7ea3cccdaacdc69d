"""Uses of experts in groups, made on the device: which columns of which tile a use has.

A *use* is a number t · U + u: token t meets the u-th of its experts. Uses of one expert lie side by side in
the panels (activations/expert_x_tiles.py), each expert from a whole tile on. A *slot* is the place of a tile
of ``columns`` uses. One block, or a few, look at all ids and write a plan, words of 32 bits (of few uses no
kernel needs one: block_plan.py):

    slots    how many there are, whether uses are in order, and two that are nothing
    table    [slots][expert, its first slot, its slots, its uses]
    uses     [slots · columns]: the use of a column; anything where there is none
    places   [uses]: the column of a use, NOWHERE if its id is no expert
    told     [blocks][experts + 1]: how many uses each block found, and whether they are out of order

Uses are in order where those of an expert follow each other, the first expert's first, and none is lost: then
a slot's are neighbours, which need not be gathered. Otherwise which of its columns a use gets may change
from run to run; its result does not depend on it.
"""

from __future__ import annotations

from functools import cache
from math import erf, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..gemv.uses import NO_EXPERT, expert_of
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes, dependent_launch, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family

THREADS, EACH = 1024, 8  # of the block; ids that a thread looks at together
MOST = 4096  # experts
MOST_BLOCKS, OF_BLOCK = 8, 1024  # of the cluster; uses of a block at least
NOWHERE = 0xFFFFFFFF
HEAD = 4  # words before the table


class Plan(NamedTuple):
    """How long the parts of a plan are."""

    uses: int
    experts: int
    columns: int  # of a tile

    @property
    def slots(self) -> int:
        """As many as there can be: all but one of the columns of an expert's last tile may be empty."""
        return (self.uses + min(self.uses, self.experts) * (self.columns - 1)) // self.columns

    @property
    def height(self) -> int:
        """Columns of all slots: rows of panels."""
        return self.slots * self.columns

    @property
    def places(self) -> int:
        """The word with which they begin."""
        return HEAD + 4 * self.slots + self.height

    @property
    def blocks(self) -> int:
        """That make the plan: a cluster."""
        return max(1, min(MOST_BLOCKS, self.uses // OF_BLOCK))

    @property
    def words(self) -> int:
        return self.places + self.uses + ((self.experts + 1) * self.blocks if self.blocks > 1 else 0)


def expected_slots(tokens: int, used: int, experts: int, columns: int) -> float:
    """Of an expert, on average: it has one more where it has more uses than those before hold."""
    mean = tokens * used / experts
    spread = sqrt(mean * max(1 - used / experts, 0)) or 1e-6
    most = int((mean + 4 * spread) // columns) + 1
    return sum(0.5 - 0.5 * erf((i * columns + 0.5 - mean) / spread / sqrt(2)) for i in range(most))


@cache
def adder_up() -> Any:
    """The device function by which a warp finds each expert's first slot, and how many there are; and its
    first use, if they are in order.
    """
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, votes.from_lane, votes.sum_up_to

    @inlined
    def add_up(counts: Any, firsts: Any, begins: Any, experts: Any, columns: Any, lane: Any) -> Any:
        total, uses, first = uint32(0), uint32(0), uint32(0)
        while first < experts:
            expert, count = uint32(first + lane), uint32(0)
            if expert < experts:
                count = uint32(take4(counts + expert * uint32(4)))
            own = uint32((count + columns - uint32(1)) // columns)
            up_to, uses_to = sum_up_to(own, lane), sum_up_to(count, lane)
            if expert < experts:
                put(firsts + expert * uint32(4), uint32(uint32(total + up_to) - own))
                put(begins + expert * uint32(4), uint32(uint32(uses + uses_to) - count))
            total, uses = (
                uint32(total + from_lane(up_to, uint32(31))), uint32(uses + from_lane(uses_to, uint32(31))),
            )  # fmt: skip
            first = uint32(first + uint32(32))
        if lane == uint32(0):
            put(firsts + experts * uint32(4), total)
        return total

    return add_up


@cache
def tabulator() -> Any:
    """The device function that writes the table: each thread, of as many as there are in all blocks, looks
    for the expert of a slot.
    """
    take4, store16 = bf16x2.take4, ptx.store16

    @inlined
    def tabulate(counts: Any, firsts: Any, experts: Any, table: Any, thread: Any, blocks: Any) -> None:
        slots = take4(firsts + experts * uint32(4))
        for each in range(thread, slots, uint32(blocks * uint32(THREADS))):
            slot, low, high = uint32(each), uint32(0), experts
            while high - low > uint32(1):
                middle = uint32(uint32(low + high) >> uint32(1))
                if take4(firsts + middle * uint32(4)) <= slot:
                    low = middle
                else:
                    high = middle
            at = firsts + low * uint32(4)
            first, end = take4(at), take4(at + uint32(4))
            to = table + uint64(slot) * uint64(16)
            store16(to, low, first, uint32(end - first), take4(counts + low * uint32(4)))

    return tabulate


@cache
def gatherer_of_counts() -> Any:
    """The device function by which blocks tell each other their counts, in memory.

    Afterwards ``counts`` are those of all, and ``befores`` those of the blocks before.
    """
    put, take4, store4, load4 = ptx.put, bf16x2.take4, ptx.store4, codes.load4
    sync_cluster = barriers.sync_cluster

    @inlined
    def gather(counts: Any, befores: Any, told: Any, entries: Any, rank: Any, blocks: Any) -> None:
        for entry in range(uint32(cuda.threadIdx.x), entries, uint32(THREADS)):
            at = told + uint64(uint32(rank * entries) + uint32(entry)) * uint64(4)
            store4(at, take4(counts + uint32(entry) * uint32(4)))
        sync_cluster()
        for entry in range(uint32(cuda.threadIdx.x), entries, uint32(THREADS)):
            before, total = uint32(0), uint32(0)
            for block in range(uint32(0), blocks):
                if uint32(block) == rank:
                    before = uint32(total)
                at = told + uint64(uint32(uint32(block) * entries) + uint32(entry)) * uint64(4)
                total = uint32(total + load4(at))
            put(counts + uint32(entry) * uint32(4), total)
            put(befores + uint32(entry) * uint32(4), before)
        cuda.syncthreads()

    return gather


@cache
def counter() -> Any:
    """The device function by which a block counts uses of each expert, and sees whether they are in order.

    ``found``, ``own``: the experts of the last uses that a thread looked at, and how many uses of them came
    before. Blocks with more uses than their threads hold keep these in places.
    """
    expert_of_use, put, store4, add = expert_of(), ptx.put, ptx.store4, votes.add_shared

    @inlined
    def count(
        ids: Any, counts: Any, disorder: Any, places: Any, found: Any, own: Any, begin: Any, end: Any,
        uses: Any, experts: Any, again: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        for first in range(begin, end, uint32(THREADS * EACH)):
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                found[i] = expert_of_use(ids, use, experts) if use < end else uint32(NO_EXPERT)
                own[i], use = uint32(NO_EXPERT), uint32(use + uint32(1))  # whose expert may not be smaller
                if use <= end and use < uses:
                    own[i] = expert_of_use(ids, use, experts)
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                if use < end and (found[i] > own[i] or found[i] == uint32(NO_EXPERT)):
                    put(disorder, uint32(1))
                if found[i] != uint32(NO_EXPERT):
                    own[i] = add(counts + found[i] * uint32(4), uint32(1))
                if again and use < end:
                    store4(places + uint64(use) * uint64(4), own[i])

    return count


@cache
def column_giver() -> Any:
    """The device function that gives each of a block's uses its column; ``found``, ``own`` as of counter().

    ``firsts``, ``befores``, ``begins``: of each expert its first slot, how many uses the blocks before have,
    and its first use, which counts if uses are in order.
    """
    expert_of_use, take4, store4, load4 = expert_of(), bf16x2.take4, ptx.store4, codes.load4

    @inlined
    def give(
        ids: Any, firsts: Any, befores: Any, begins: Any, of_column: Any, places: Any, found: Any, own: Any,
        begin: Any, end: Any, experts: Any, columns: Any, again: Any, in_order: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        for first in range(begin, end, uint32(THREADS * EACH)):
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                if again:
                    found[i] = expert_of_use(ids, use, experts) if use < end else uint32(NO_EXPERT)
                    if found[i] != uint32(NO_EXPERT):
                        own[i] = load4(places + uint64(use) * uint64(4))
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                at = places + uint64(use) * uint64(4)
                if found[i] != uint32(NO_EXPERT):
                    expert = found[i] * uint32(4)
                    to = uint32(take4(firsts + expert) * columns)
                    if in_order:
                        to = uint32(to + uint32(use - take4(begins + expert)))
                    else:
                        to = uint32(uint32(to + take4(befores + expert)) + own[i])
                    store4(at, to)
                    store4(of_column + uint64(to) * uint64(4), use)
                elif use < end:
                    store4(at, uint32(NOWHERE))

    return give


@family()
def grouper() -> Kernel:
    """One block, or a cluster of them: each has its share of the uses, and finds the table for itself."""
    add_up, tabulate, count, give = adder_up(), tabulator(), counter(), column_giver()
    base, put, take4, store4 = ptx.shared_base, ptx.put, bf16x2.take4, ptx.store4
    wait_for_predecessor, let_successor_start, gather_counts = (
        dependent_launch.wait_for_predecessor, dependent_launch.let_successor_start, gatherer_of_counts(),
    )  # fmt: skip

    def group(
        ids: Any,  # int64 [uses]
        plan: Any,
        places: Any, told: Any,  # of the plan
        uses: Any, experts: Any, columns: Any, slots: Any,
    ) -> None:  # fmt: skip
        wait_for_predecessor()
        let_successor_start()  # not before: it reads rows of x as soon as it starts
        (warp, lane), thread = warp_and_lane(), uint32(cuda.threadIdx.x)
        rank, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        entries, table = uint32(experts + uint32(1)), plan + uint64(4 * HEAD)
        counts, of_column = base(), table + uint64(slots) * uint64(16)
        disorder, befores = counts + experts * uint32(4), counts + entries * uint32(4)
        firsts, begins = befores + entries * uint32(4), befores + entries * uint32(8)
        each = uint32(uint32(uses + uint32(blocks - uint32(1))) // blocks)
        begin = min(uint32(rank * each), uses)
        end = min(uint32(begin + each), uses)
        for entry in range(thread, entries, uint32(THREADS)):
            put(counts + uint32(entry) * uint32(4), uint32(0))
            put(befores + uint32(entry) * uint32(4), uint32(0))
        cuda.syncthreads()
        found, own = cuda.local.array(EACH, uint32), cuda.local.array(EACH, uint32)
        again = each > uint32(THREADS * EACH)  # then neither is there later
        count(ids, counts, disorder, places, found, own, begin, end, uses, experts, again)
        cuda.syncthreads()
        if blocks > uint32(1):
            gather_counts(counts, befores, told, entries, rank, blocks)
        in_order = take4(disorder) == uint32(0)
        if warp == uint32(0):
            total = add_up(counts, firsts, begins, experts, columns, lane)
            if lane == uint32(0):
                store4(plan, total)
                store4(plan + uint64(4), uint32(1) if in_order else uint32(0))
        cuda.syncthreads()
        tabulate(counts, firsts, experts, table, uint32(rank * uint32(THREADS)) + thread, blocks)
        give(
            ids, firsts, befores, begins, of_column, places, found, own, begin, end, experts, columns, again,
            in_order,
        )  # fmt: skip

    sizes: dict[str, Any] = {"threads": THREADS, "shared": 16 * (MOST + 1), "least": (8, 0)}
    return Kernel("uses by expert", group, *(uint64,) * 4, *(uint32,) * 4, early=True, **sizes)


def sorted_uses(ids: Any, of: Plan) -> tuple[Any, Any]:
    """The plan, and of it the places."""
    plan = device.cupy().empty(of.words, np.uint32)
    places, blocks = plan[of.places :], of.blocks
    operands = ids, plan, places, places[of.uses :] if blocks > 1 else 0
    grouper()((blocks,), (THREADS,), *operands, of.uses, of.experts, of.columns, of.slots, cluster=blocks)
    return plan, places
