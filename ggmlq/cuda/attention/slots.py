"""Sums of the same rows added: of a block's warps, and of the blocks of a cluster."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32, uint64
from .floats import pair_storer
from .plan import Plan
from .softmax import LOG2_E, NEVER, power_of_two, reciprocal


@inlined
def weight_of(top: Any, largest: Any) -> Any:
    """The weight of sums whose maximum is ``top`` beside others with a larger one."""
    return power_of_two(ptx.sub(top, largest)) if top > NEVER else float32(0)


@inlined
def inverse(total: Any) -> Any:
    """1 / total; 0 of a row that has seen nothing."""
    return reciprocal(total) if total > float32(0) else float32(0)


@inlined
def factor_of(top: Any, total: Any, sinks: Any, head: Any) -> Any:
    """The factor of a row's sums: 1 / total, in which a sink of its head takes part."""
    if sinks != uint64(0):
        sink = ptx.mul(ptx.load_float(sinks + uint64(head) * uint64(4)), LOG2_E)
        largest = ptx.larger(top, sink)
        weight = weight_of(top, largest)
        total = ptx.fma(total, weight, power_of_two(ptx.sub(sink, largest)))
        return ptx.mul(weight, inverse(total))
    return inverse(total)


@cache
def slot_adder() -> Any:
    """The device function that adds ``slots`` pairs of sums of a row: maximum, sum of weights, both sums.

    ``stats`` and ``sums`` are addresses of the first ones in shared memory, the others lie further on.
    """
    take_pair, larger, fma = ptx.take_pair, ptx.larger, ptx.fma

    @inlined
    def add(stats: Any, stats_apart: Any, sums: Any, sums_apart: Any, slots: Any) -> Any:
        top, total, low, high = NEVER, float32(0), float32(0), float32(0)
        for w in range(slots):
            top = larger(top, take_pair(stats + uint32(w) * stats_apart)[0])
        for w in range(slots):
            stat = take_pair(stats + uint32(w) * stats_apart)
            two = take_pair(sums + uint32(w) * sums_apart)
            weight = weight_of(stat[0], top)
            total = fma(stat[1], weight, total)
            low, high = fma(two[0], weight, low), fma(two[1], weight, high)
        return top, total, low, high

    return add


@cache
def pair_writer() -> Any:
    """The device function that writes two columns of a row ``row`` of the block's unit."""
    store, mul = pair_storer(), ptx.mul

    @inlined
    def write(row: Any, pair: Any, row_sums: Any, addresses: Any, sizes: Any) -> None:
        (_, total, low, high), unit, rows = row_sums, uint32(cuda.blockIdx.z), sizes[0] * sizes[1]
        head = (unit % sizes[3]) * sizes[1] + uint32(row) // sizes[0]
        factor = factor_of(row_sums[0], total, addresses[7], head)
        size = uint64(4) if sizes[7] == uint32(0) else uint64(2)
        number = uint64(unit) * uint64(rows) + uint64(row)
        to = addresses[3] + number * uint64(sizes[9]) * size
        store(to, uint64(pair), sizes[7], mul(low, factor), mul(high, factor))

    return write


@cache
def cluster_epilogue(plan: Plan) -> Any:
    """The device function by which the blocks of a cluster add their parts of the same rows.

    Each block adds an equal share of all pairs of columns. Others put theirs into its shared memory, behind
    all that it has: [source, pair of the share], then [source, row] of maxima and sums of weights.
    """
    pairs, pitch, threads, warps = plan.width_v // 2, plan.sums_pitch, plan.threads, plan.warps
    stats_at, slot_rows, inbox_at, inbox_stats_at = (
        plan.exchanged_stats_at, plan.rows, plan.inbox_at, plan.inbox_stats_at
    )  # fmt: skip
    add, write, put, base = slot_adder(), pair_writer(), barriers.put_pair_in_block, ptx.shared_base
    wait, sync = barriers.wait_for_cluster, barriers.sync_cluster
    rank_here, size = barriers.rank_in_cluster, barriers.cluster_size

    @inlined
    def share(at: Any, start: Any, count: Any, addresses: Any, sizes: Any) -> None:
        blocks, rank, number = uint32(size()), uint32(rank_here()), uint32(cuda.threadIdx.x)
        all_pairs = count * uint32(pairs)
        each = (all_pairs + blocks - uint32(1)) // blocks
        inbox, stats_inbox = base() + uint32(inbox_at), base() + uint32(inbox_stats_at)
        wait()  # the shared memory of the others exists
        while number < all_pairs:
            row = number // uint32(pairs)
            pair = number - row * uint32(pairs)
            stats, sums = at + uint32(stats_at) + row * uint32(8), at + row * uint32(pitch * 4)
            top, total, low, high = add(
                stats, uint32(slot_rows * 8), sums + pair * uint32(8), uint32(slot_rows * pitch * 4),
                uint32(warps),
            )  # fmt: skip
            owner = number // each
            put(inbox + (rank * each + number - owner * each) * uint32(8), owner, low, high)
            if pair < blocks:
                put(stats_inbox + (rank * uint32(slot_rows) + row) * uint32(8), pair, top, total)
            number += uint32(threads)
        sync()
        number = rank * each + uint32(cuda.threadIdx.x)
        while number < min(all_pairs, (rank + uint32(1)) * each):
            row = number // uint32(pairs)
            row_sums = add(
                stats_inbox + row * uint32(8), uint32(slot_rows * 8),
                inbox + (number - rank * each) * uint32(8), each * uint32(8), blocks,
            )  # fmt: skip
            write(start + row, number - row * uint32(pairs), row_sums, addresses, sizes)
            number += uint32(threads)

    return share
