"""Counts of the uses of each expert, for a plan (groups.py): made by a block, or exchanged by a cluster."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from .uses import NO_EXPERT, expert_of

THREADS, THREAD_IDS = 1024, 8  # of a block; ids that a thread reads together


@cache
def slot_counter() -> Any:
    """The device function by which a warp finds each expert's first slot and the number of slots; and each
    expert's first use, which counts if uses are in order.
    """
    put, take4, from_lane, sum_up_to = ptx.put, bf16x2.take4, votes.from_lane, votes.sum_up_to

    @inlined
    def count_slots(counts: Any, firsts: Any, begins: Any, experts: Any, columns: Any, lane: Any) -> Any:
        total, uses, first = uint32(0), uint32(0), uint32(0)
        while first < experts:
            expert, count = uint32(first + lane), uint32(0)
            if expert < experts:
                count = uint32(take4(counts + expert * uint32(4)))
            expert_slots = uint32((count + columns - uint32(1)) // columns)
            up_to, uses_to = sum_up_to(expert_slots, lane), sum_up_to(count, lane)
            if expert < experts:
                put(firsts + expert * uint32(4), uint32(uint32(total + up_to) - expert_slots))
                put(begins + expert * uint32(4), uint32(uint32(uses + uses_to) - count))
            total, uses = (
                uint32(total + from_lane(up_to, uint32(31))), uint32(uses + from_lane(uses_to, uint32(31))),
            )  # fmt: skip
            first = uint32(first + uint32(32))
        if lane == uint32(0):
            put(firsts + experts * uint32(4), total)
        return total

    return count_slots


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
            at = block_counts + uint64(uint32(rank * entries) + uint32(entry)) * uint64(4)
            store4(at, take4(counts + uint32(entry) * uint32(4)))
        sync_cluster()
        for entry in range(uint32(cuda.threadIdx.x), entries, uint32(THREADS)):
            before, total = uint32(0), uint32(0)
            for block in range(uint32(0), blocks):
                if uint32(block) == rank:
                    before = uint32(total)
                at = block_counts + uint64(uint32(uint32(block) * entries) + uint32(entry)) * uint64(4)
                total = uint32(total + load4(at))
            put(counts + uint32(entry) * uint32(4), total)
            put(befores + uint32(entry) * uint32(4), before)
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
    expert_of_use, put, store4, add = expert_of(), ptx.put, ptx.store4, votes.add_shared

    @inlined
    def count(
        ids: Any, counts: Any, disorder: Any, places: Any, use_experts: Any, ranks: Any, begin: Any,
        end: Any, uses: Any, experts: Any, reads_again: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        for first in range(begin, end, uint32(THREADS * THREAD_IDS)):
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                use_experts[i] = expert_of_use(ids, use, experts) if use < end else uint32(NO_EXPERT)
                # until it is counted, a rank is the next use's expert, which may not be smaller
                ranks[i], use = uint32(NO_EXPERT), uint32(use + uint32(1))
                if use <= end and use < uses:
                    ranks[i] = expert_of_use(ids, use, experts)
            for i in range(THREAD_IDS):
                use = uint32(first) + uint32(i * THREADS) + thread
                if use < end and (use_experts[i] > ranks[i] or use_experts[i] == uint32(NO_EXPERT)):
                    put(disorder, uint32(1))
                if use_experts[i] != uint32(NO_EXPERT):
                    ranks[i] = add(counts + use_experts[i] * uint32(4), uint32(1))
                if reads_again and use < end:
                    store4(places + uint64(use) * uint64(4), ranks[i])

    return count
