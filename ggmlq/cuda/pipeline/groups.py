"""Uses of experts in groups, made on the device: which columns of which tile a use has.

A *use* is a number t · U + u: token t meets the u-th of its experts. Uses of one expert lie side by side in
the panels (activations/expert_panels.py), each expert from a whole tile on. A *slot* is the place of a tile
of ``columns`` uses. One block, or a few, look at all ids and write a plan, words of 32 bits:

    slots    how many there are, and three that are nothing
    table    [slots][expert, its first slot, its slots, its uses]
    uses     [slots · columns]: the use of a column; anything where there is none
    places   [uses]: the column of a use, NOWHERE if its id is no expert
    told     [blocks][experts]: how many uses each block found

Which of its columns a use gets may change from run to run; its result does not depend on it.
"""

from __future__ import annotations

from functools import cache
from math import erf, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..gemv.uses import NO_EXPERT, expert_of
from ..machine import device
from ..machine.launch import Kernel, family
from ..words import barrier as barriers
from ..words import bf16x2, codes, early_start, ptx, votes
from ..words.atoms import inlined
from ..words.lane import warp_and_lane
from ..words.language import cuda, uint32, uint64

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
        return self.places + self.uses + (self.experts * self.blocks if self.blocks > 1 else 0)


def expected_slots(tokens: int, used: int, experts: int, columns: int) -> float:
    """Of an expert, on average: it has one more where it has more uses than those before hold."""
    mean = tokens * used / experts
    spread = sqrt(mean * max(1 - used / experts, 0)) or 1e-6
    most = int((mean + 4 * spread) // columns) + 1
    return sum(0.5 - 0.5 * erf((i * columns + 0.5 - mean) / spread / sqrt(2)) for i in range(most))


@cache
def adder_up() -> Any:
    """The device function by which a warp finds each expert's first slot, and how many there are."""
    put, take4, of_lane, of_lane_before = ptx.put, bf16x2.take4, votes.of_lane, votes.of_lane_before

    @inlined
    def add_up(counts: Any, firsts: Any, experts: Any, columns: Any, lane: Any) -> Any:
        total, first = uint32(0), uint32(0)
        while first < experts:
            expert, own = uint32(first + lane), uint32(0)
            if expert < experts:
                own = (take4(counts + expert * uint32(4)) + columns - uint32(1)) // columns
            up_to = uint32(own)
            for i in range(5):
                before = of_lane_before(up_to, uint32(1 << i))
                if lane >= uint32(1 << i):
                    up_to = uint32(up_to + before)
            if expert < experts:
                put(firsts + expert * uint32(4), uint32(uint32(total + up_to) - own))
            total, first = uint32(total + of_lane(up_to, uint32(31))), uint32(first + uint32(32))
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
    meet_cluster = barriers.meet_cluster

    @inlined
    def gather(counts: Any, befores: Any, told: Any, experts: Any, rank: Any, blocks: Any) -> None:
        for expert in range(uint32(cuda.threadIdx.x), experts, uint32(THREADS)):
            at = told + uint64(uint32(rank * experts) + uint32(expert)) * uint64(4)
            store4(at, take4(counts + uint32(expert) * uint32(4)))
        meet_cluster()
        for expert in range(uint32(cuda.threadIdx.x), experts, uint32(THREADS)):
            before, total = uint32(0), uint32(0)
            for block in range(uint32(0), blocks):
                if uint32(block) == rank:
                    before = uint32(total)
                at = told + uint64(uint32(uint32(block) * experts) + uint32(expert)) * uint64(4)
                total = uint32(total + load4(at))
            put(counts + uint32(expert) * uint32(4), total)
            put(befores + uint32(expert) * uint32(4), before)
        cuda.syncthreads()

    return gather


@family()
def grouper() -> Kernel:
    """One block, or a cluster of them: each has its share of the uses, and finds the table for itself."""
    expert_of_use, add_up, tabulate = expert_of(), adder_up(), tabulator()
    base, put, take4, store4, load4 = ptx.shared_base, ptx.put, bf16x2.take4, ptx.store4, codes.load4
    take_turn, add, gather_counts = early_start.take_turn, votes.add_shared, gatherer_of_counts()

    def group(
        ids: Any,  # int64 [uses]
        plan: Any,
        places: Any, told: Any,  # of the plan
        uses: Any, experts: Any, columns: Any, slots: Any,
    ) -> None:  # fmt: skip
        take_turn()
        (warp, lane), thread = warp_and_lane(), uint32(cuda.threadIdx.x)
        rank, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        counts, table = base(), plan + uint64(4 * HEAD)
        befores = counts + experts * uint32(4)
        firsts, of_column = befores + experts * uint32(4), table + uint64(slots) * uint64(16)
        each = uint32(uint32(uses + uint32(blocks - uint32(1))) // blocks)
        begin = min(uint32(rank * each), uses)
        end = min(uint32(begin + each), uses)
        for expert in range(thread, experts, uint32(THREADS)):
            put(counts + uint32(expert) * uint32(4), uint32(0))
            put(befores + uint32(expert) * uint32(4), uint32(0))
        cuda.syncthreads()
        found, own = cuda.local.array(EACH, uint32), cuda.local.array(EACH, uint32)
        again = each > uint32(THREADS * EACH)  # then neither is there later
        for first in range(begin, end, uint32(THREADS * EACH)):
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                found[i] = expert_of_use(ids, use, experts) if use < end else uint32(NO_EXPERT)
            for i in range(EACH):
                if found[i] != uint32(NO_EXPERT):
                    own[i] = add(counts + found[i] * uint32(4), uint32(1))
                use = uint32(first) + uint32(i * THREADS) + thread
                if again and use < end:
                    store4(places + uint64(use) * uint64(4), own[i])
        cuda.syncthreads()
        if blocks > uint32(1):
            gather_counts(counts, befores, told, experts, rank, blocks)
        if warp == uint32(0):
            total = add_up(counts, firsts, experts, columns, lane)
            if lane == uint32(0):
                store4(plan, total)
        cuda.syncthreads()
        tabulate(counts, firsts, experts, table, uint32(rank * uint32(THREADS)) + thread, blocks)
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
                    to = uint32(take4(firsts + found[i] * uint32(4)) * columns)
                    to = uint32(uint32(to + take4(befores + found[i] * uint32(4))) + own[i])
                    store4(at, to)
                    store4(of_column + uint64(to) * uint64(4), use)
                elif use < end:
                    store4(at, uint32(NOWHERE))

    sizes: dict[str, Any] = {"threads": THREADS, "shared": 4 * (3 * MOST + 1), "least": (8, 0)}
    return Kernel("uses by expert", group, *(uint64,) * 4, *(uint32,) * 4, early=True, **sizes)


def sorted_uses(ids: Any, of: Plan) -> tuple[Any, Any]:
    """The plan, and of it the places."""
    plan = device.cupy().empty(of.words, np.uint32)
    places, blocks = plan[of.places :], of.blocks
    operands = ids, plan, places, places[of.uses :] if blocks > 1 else 0
    grouper()((blocks,), (THREADS,), *operands, of.uses, of.experts, of.columns, of.slots, cluster=blocks)
    return plan, places
