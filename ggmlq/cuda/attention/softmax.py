"""The softmax of a warp's scores, in powers of two: a running maximum and sum of each row.

Scores are changed where options ask for it (soft cap, ALiBi, a mask), and are minus infinity at positions
that a row does not see. A row that has seen nothing has a maximum of minus infinity; its weights are zeros.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import barrier as barriers
from ..intrinsics import lane, ptx
from ..intrinsics.assembly import f32, instruction
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from .codes import pair_storer
from .plan import Plan
from .unrolled import unrolled

LOG2_E, TWICE_LOG2_E = float32(1 / math.log(2)), float32(2 / math.log(2))
NEVER, LOWEST = float32(float("-inf")), float32(-3e38)


@instruction("ex2.approx.ftz.f32 $0, $1;", f32, f32)
def power_of_two(a: Any) -> Any:
    """Two to the power of a, off by two units in the last place at most; 0 below the normal numbers."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp2(np.float32(a))


@instruction("rcp.approx.f32 $0, $1;", f32, f32)
def reciprocal(a: Any) -> Any:
    """1 / a, off by a unit in the last place at most; a division by rounding once is a call."""
    return np.float32(1) / np.float32(a)


@inlined
def hyperbolic_tangent(x: Any) -> Any:
    """Tanh x, by a power of two."""
    power = power_of_two(ptx.mul(x, TWICE_LOG2_E))
    return ptx.fma(float32(-2), reciprocal(ptx.add(float32(1), power)), float32(1))


@cache
def changer(plan: Plan) -> Any:
    """The device function that applies options to scores, which become natural ones, with ``mask`` or 0."""
    mul, fma, div, load_float, tanh, apart = (
        ptx.mul, ptx.fma, ptx.div, ptx.load_float, hyperbolic_tangent, plan.neighbours,
    )  # fmt: skip

    def four(j: Any, s: Any, at: Any, rows: Any, numbers: Any, mask: Any, distances: Any) -> None:
        # rows: places of both, positions; numbers: scale, cap, slopes of both
        scale, cap = numbers[0], numbers[1]
        for r in range(2):
            for i in range(2):
                position = at + int32(8 * j + apart * i)
                value = mul(s[4 * j + 2 * r + i], scale)
                if cap > float32(0):
                    value = mul(cap, tanh(div(value, cap)))
                if mask == uint64(0):
                    value = fma(numbers[2 + r], float32(position - rows[r]), value)
                elif position < rows[2]:
                    row = mask + uint64(r) * uint64(distances[1])
                    place = row + uint64(position) * uint64(distances[0])
                    value = fma(numbers[2 + r], load_float(place), value)
                s[4 * j + 2 * r + i] = value

    return unrolled(plan.fours, four)


@inlined
def read_options(
    numbers: Any, places: Any, distances: Any, row: Any, step: Any, addresses: Any, strides: Any, sizes: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Read what changes the scores of the rows ``row``, ``row`` + ``step``; the address of the first's mask.

    ``numbers``: scale and cap, which are there, then slopes. ``places``: positions of both rows, of which
    the last query has the last one, then the number of all. ``distances``: bytes between positions of the
    mask, and between both rows.
    """
    load_float, mask = ptx.load_float, uint64(0)
    unit = uint32(cuda.blockIdx.z)
    sequence = unit // sizes[3]
    for r in range(2):
        this = uint32(min(row + uint32(r) * uint32(step), sizes[0] * sizes[1] - uint32(1)))
        query = this % sizes[0]
        head = (unit - sequence * sizes[3]) * sizes[1] + this // sizes[0]
        places[r] = length - int32(sizes[0]) + int32(query)
        numbers[2 + r] = float32(0) if addresses[5] == uint64(0) else float32(1)
        if addresses[8] != uint64(0):
            numbers[2 + r] = load_float(addresses[8] + uint64(head) * uint64(4))
        at = (
            addresses[5]
            + uint64(sequence) * strides[6]
            + uint64(head) * strides[7]
            + uint64(query) * strides[8]
        )
        if r == 0:
            mask = at
        distances[1] = at - mask
    places[2], distances[0] = int32(sizes[2]), strides[9]
    return mask if addresses[5] != uint64(0) else uint64(0)


@cache
def hider(plan: Plan) -> Any:
    """The device function that hides positions which a row does not see."""
    apart = plan.neighbours

    def four(j: Any, s: Any, at: Any, begins: Any, ends: Any) -> None:
        for r in range(2):
            for i in range(2):
                position = at + int32(8 * j + apart * i)
                if position < begins[r] or position >= ends[r]:
                    s[4 * j + 2 * r + i] = NEVER

    return unrolled(plan.fours, four)


@cache
def row_combiner(plan: Any, combine: Any) -> Any:
    """The device function that combines a number of each lane that has scores of the same row."""
    turned = plan.turned

    @inlined
    def combined(value: Any) -> Any:
        if turned:
            value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
            value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
            return combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))
        value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
        return combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))

    return combined


@cache
def weigher(plan: Plan) -> Any:
    """The device function ``weigh(s, factor, tops, totals, ratios)``: scores become weights.

    ``factor`` makes scores powers of two. It returns True where a maximum of the warp grows; sums so far are
    then to shrink by the ratios.
    """
    fours, of_row = plan.fours, row_combiner(plan, ptx.larger)
    larger, fma, mul, add, sub, exp2 = ptx.larger, ptx.fma, ptx.mul, ptx.add, ptx.sub, power_of_two
    lanes_where_equal = lane.lanes_where_equal

    def largest(j: Any, s: Any, most: Any) -> None:
        for r in range(2):
            most[r] = larger(most[r], larger(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]))

    def power(j: Any, s: Any, factor: Any, bases: Any, sums: Any) -> None:
        for r in range(2):
            for i in range(2):
                weight = exp2(fma(s[4 * j + 2 * r + i], factor, -bases[r]))
                s[4 * j + 2 * r + i] = weight
                sums[r] = add(sums[r], weight)

    find_largest, take_powers = unrolled(fours, largest), unrolled(fours, power)

    @inlined
    def weigh(s: Any, factor: Any, tops: Any, totals: Any, ratios: Any) -> Any:
        most, bases = cuda.local.array(2, float32), cuda.local.array(2, float32)
        sums = cuda.local.array(2, float32)
        for r in range(2):
            most[r], sums[r] = NEVER, float32(0)
        find_largest(0, s, most)
        grown = uint32(0)
        for r in range(2):
            most[r] = of_row(most[r])
            most[r] = larger(tops[r], mul(most[r], factor))
            bases[r] = larger(most[r], LOWEST)  # finite, so that weights of rows that saw nothing are 0
            ratios[r] = exp2(sub(tops[r], bases[r]))
            grown |= uint32(most[r] > tops[r])
            tops[r] = most[r]
        take_powers(0, s, factor, bases, sums)
        for r in range(2):
            totals[r] = fma(totals[r], ratios[r], sums[r])
        return lanes_where_equal(grown, uint32(0)) != uint32(ALL_LANES)

    return weigh


@cache
def weights_maker(plan: Any) -> Any:
    """The device function that makes weights of a step's scores, hidden where a row sees nothing.

    ``seen``: the first position that all rows see, and the end of those. It returns what ``weigh`` does.
    """
    step, hide, weigh = plan.positions, hider(plan), weigher(plan)

    @inlined
    def make(
        s: Any, origin: Any, column: Any, seen: Any, begins: Any, ends: Any, factor: Any, tops: Any,
        totals: Any, ratios: Any,
    ) -> Any:  # fmt: skip
        if origin < seen[0] or origin + int32(step) > seen[1]:
            hide(0, s, origin + column, begins, ends)
        return weigh(s, factor, tops, totals, ratios)

    return make


@cache
def shrinker(plan: Plan) -> Any:
    """The device function that multiplies the sums of both rows by a ratio each."""
    mul = ptx.mul

    def four(j: Any, o: Any, ratios: Any) -> None:
        for r in range(2):
            for i in range(2):
                o[4 * j + 2 * r + i] = mul(o[4 * j + 2 * r + i], ratios[r])

    return unrolled(plan.sums // 4, four)


# Sums of the same rows added: of a block's warps, and of the blocks of a cluster.


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
