"""Uses of experts in groups, made on the device: which columns of which tile a use has.

A *use* is a number t · U + u: token t meets the u-th of its experts. Uses of one expert lie side by side in
the panels (activations/expert_panels.py), each expert from a whole tile on. A *slot* is the place of a tile
of ``columns`` uses. One block looks at all ids and writes a plan, words of 32 bits:

    slots    how many there are, and three that are nothing
    table    [slots][expert, its first slot, its slots, its uses]
    uses     [slots · columns]: the use of a column; anything where there is none
    places   [uses]: the column of a use, NOWHERE if its id is no expert

Which of its columns a use gets may change from run to run; its result does not depend on it.
"""

from __future__ import annotations

from functools import cache
from math import erf, sqrt
from typing import Any, NamedTuple

from ..gemv.uses import NO_EXPERT, expert_of
from ..machine.launch import Kernel, family
from ..words import bf16x2, codes, early_start, ptx, votes
from ..words.atoms import inlined
from ..words.lane import warp_and_lane
from ..words.language import cuda, uint32, uint64

THREADS, EACH = 1024, 8  # of the block; ids that a thread looks at together
MOST = 4096  # experts
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
    def words(self) -> int:
        return self.places + self.uses


def expected_slots(tokens: int, used: int, experts: int, columns: int) -> float:
    """Of an expert, on average: it has one more where it has more uses than those before hold."""
    mean = tokens * used / experts
    spread = sqrt(mean * max(1 - used / experts, 0)) or 1e-6
    most = int((mean + 4 * spread) // columns) + 1
    return sum(0.5 - 0.5 * erf((i * columns + 0.5 - mean) / spread / sqrt(2)) for i in range(most))


@cache
def ranker() -> Any:
    """The device function for how many uses of an expert, in whatever order, come before that of a lane."""
    with_mine, ones, of_lane, add = votes.lanes_with_mine, votes.count, votes.of_lane, votes.add_shared

    @inlined
    def rank(counts: Any, expert: Any, lane: Any) -> Any:
        same = with_mine(expert)
        before = ones(same & uint32((uint32(1) << lane) - uint32(1)))
        start = uint32(0)
        if before == uint32(0) and expert != uint32(NO_EXPERT):
            start = add(counts + expert * uint32(4), ones(same))
        lowest = ones(uint32((same & (~same + uint32(1))) - uint32(1)))
        return uint32(of_lane(start, lowest) + before)

    return rank


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
    """The device function that writes the table: a thread looks for the expert of its slot."""
    take4, store16 = bf16x2.take4, ptx.store16

    @inlined
    def tabulate(counts: Any, firsts: Any, experts: Any, table: Any) -> None:
        slots = take4(firsts + experts * uint32(4))
        for slot in range(uint32(cuda.threadIdx.x), slots, uint32(THREADS)):
            low, high = uint32(0), experts
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


@family()
def grouper() -> Kernel:
    """One block for all."""
    expert_of_use, rank, add_up, tabulate = expert_of(), ranker(), adder_up(), tabulator()
    base, put, take4, store4, load4 = ptx.shared_base, ptx.put, bf16x2.take4, ptx.store4, codes.load4
    take_turn = early_start.take_turn

    def group(
        ids: Any,  # int64 [uses]
        plan: Any,
        places: Any,  # of the plan
        uses: Any, experts: Any, columns: Any, slots: Any,
    ) -> None:  # fmt: skip
        take_turn()
        (warp, lane), thread = warp_and_lane(), uint32(cuda.threadIdx.x)
        counts, table = base(), plan + uint64(4 * HEAD)
        firsts, of_column = counts + experts * uint32(4), table + uint64(slots) * uint64(16)
        for expert in range(thread, experts, uint32(THREADS)):
            put(counts + uint32(expert) * uint32(4), uint32(0))
        cuda.syncthreads()
        found = cuda.local.array(EACH, uint32)
        for first in range(uint32(0), uses, uint32(THREADS * EACH)):
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                found[i] = expert_of_use(ids, use, experts) if use < uses else uint32(NO_EXPERT)
            for i in range(EACH):
                own = rank(counts, found[i], lane)
                use = uint32(first) + uint32(i * THREADS) + thread
                if use < uses:
                    store4(places + uint64(use) * uint64(4), own)
        cuda.syncthreads()
        if warp == uint32(0):
            total = add_up(counts, firsts, experts, columns, lane)
            if lane == uint32(0):
                store4(plan, total)
        cuda.syncthreads()
        tabulate(counts, firsts, experts, table)
        for first in range(uint32(0), uses, uint32(THREADS * EACH)):
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                found[i] = expert_of_use(ids, use, experts) if use < uses else uint32(NO_EXPERT)
            for i in range(EACH):
                use = uint32(first) + uint32(i * THREADS) + thread
                at = places + uint64(use) * uint64(4)
                if found[i] != uint32(NO_EXPERT):
                    own = uint32(take4(firsts + found[i] * uint32(4)) * columns + load4(at))
                    store4(at, own)
                    store4(of_column + uint64(own) * uint64(4), use)
                elif use < uses:
                    store4(at, uint32(NOWHERE))

    sizes: dict[str, Any] = {"threads": THREADS, "shared": 4 * (2 * MOST + 1), "least": (8, 0)}
    return Kernel("uses by expert", group, *(uint64,) * 3, *(uint32,) * 4, early=True, **sizes)
