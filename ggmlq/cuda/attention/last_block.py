"""The parts of rows, added by the last of their blocks to end: no second kernel.

Each block stores its part, then takes a ticket. Who has the last one adds all parts, always in the same order,
so a result does not depend on which block was last. It sets the counter of tickets back to 0 for the next
kernel (tickets.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, halves, integers, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from .plan import LANES, Plan
from .results import finisher, stats_of, weight_of
from .softmax import NEVER

FOUR, TOGETHER, LOADED = 4, 8, 32  # columns of a lane; parts that are loaded at the same time, their floats


@inlined
def is_last(addresses: Any, at: Any) -> Any:
    """True for all threads of the last block that has stored these rows; ``at``: a word of shared memory."""
    cuda.syncthreads()
    if cuda.threadIdx.x == uint32(0):
        number = uint32(cuda.blockIdx.z) * uint32(cuda.gridDim.y) + uint32(cuda.blockIdx.y)
        counter = addresses[9] + uint64(number) * uint64(4)
        last = uint32(barriers.take_ordered_ticket(counter) + uint32(1)) == uint32(cuda.gridDim.x)
        if last:
            ptx.store4(counter, uint32(0))
        ptx.put(at, int32(1) if last else int32(0))
    cuda.syncthreads()
    return bf16x2.take4(at) != uint32(0)


@cache
def part_adder(plan: Plan) -> Any:
    """The device function that adds a warp's share of the parts of a row into a slot of shared memory.

    ``stats``: the address of the row's maximum and sum in the first part, ``sums`` that of its columns;
    ``apart``: rows of a part. The warp adds the parts ``which``, ``which`` + ``slices`` …
    """
    width = plan.width_v
    load8, load_floats, put_pair = integers.load8_l2, integers.load_floats_l2_if, halves.put_pair
    larger, float_of, fma, mul = ptx.larger, ptx.float_of, ptx.fma, ptx.mul

    @inlined
    def add(
        stats: Any, sums: Any, apart: Any, parts: Any, which: Any, slices: Any, slot: Any, slot_stats: Any
    ) -> None:  # fmt: skip
        lane = warp_and_lane()[1]
        values, weights = cuda.local.array(LOADED, float32), cuda.local.array(TOGETHER, float32)
        tops = cuda.local.array(TOGETHER, float32)
        total = cuda.local.array(FOUR, float32)
        for first in range(0, width, FOUR * LANES):
            column = uint32(first) + lane * uint32(FOUR)
            inside = column < uint32(width)
            top, whole = NEVER, float32(0)
            for j in range(FOUR):
                total[j] = float32(0)
            p = which
            while p < parts:
                largest = top
                for i in range(TOGETHER):
                    here = p + uint32(i) * slices
                    there = here < parts
                    place = uint64(here if there else which) * apart
                    stat = load8(stats + place * uint64(8))
                    at = sums + place * uint64(4 * width) + uint64(column) * uint64(4)
                    four = load_floats(at, uint32(1) if there and inside else uint32(0))
                    for j in range(FOUR):
                        values[FOUR * i + j] = four[j]
                    tops[i] = float_of(stat[0]) if there else NEVER
                    weights[i] = float_of(stat[1])
                for i in range(TOGETHER):
                    largest = larger(largest, tops[i])
                ratio, top = weight_of(top, largest), largest
                whole = mul(whole, ratio)
                for j in range(FOUR):
                    total[j] = mul(total[j], ratio)
                for i in range(TOGETHER):
                    weight = weight_of(tops[i], top)
                    whole = fma(weights[i], weight, whole)
                    for j in range(FOUR):
                        total[j] = fma(values[FOUR * i + j], weight, total[j])
                p += uint32(TOGETHER) * slices
            if inside:
                put_pair(slot + column * uint32(4), total[0], total[1])
                put_pair(slot + column * uint32(4) + uint32(8), total[2], total[3])
            if lane == uint32(0):
                put_pair(slot_stats, top, whole)

    return add


@cache
def last_merger(plan: Plan) -> Any:
    """The device function ``merge(start, count, addresses, sizes)`` at the end of a block that stored a part.

    Slots lie as the results of warps did: [slice, row], of sixteen rows.
    """
    warps, pitch, stats_at, width = plan.warps, plan.sums_pitch, plan.exchanged_stats_at, plan.width_v
    add, finish, base = part_adder(plan), finisher(plan), ptx.shared_base
    rows_most = plan.rows

    @inlined
    def merge(start: Any, count: Any, addresses: Any, sizes: Any) -> None:
        at = base()
        if not is_last(addresses, at):
            return
        cuda.syncthreads()
        rows, parts, (warp, _) = sizes[0] * sizes[1], uint32(cuda.gridDim.x), warp_and_lane()
        at_once, slices = uint32(1), uint32(warps)
        while at_once < count and slices > uint32(1):
            at_once, slices = at_once * uint32(2), slices // uint32(2)
        apart = uint64(cuda.gridDim.z) * uint64(rows)
        which, row = warp // at_once, warp % at_once
        while row < count:
            number = uint64(uint32(cuda.blockIdx.z)) * uint64(rows) + uint64(start + row)
            slot = which * uint32(rows_most) + row
            add(
                stats_of(addresses[4], rows, width) + number * uint64(8),
                addresses[4] + number * uint64(4 * width), apart, parts, which, slices,
                at + slot * uint32(pitch * 4), at + uint32(stats_at) + slot * uint32(8),
            )  # fmt: skip
            row += at_once
        cuda.syncthreads()
        finish(at, slices, start, count, addresses, sizes, uint64(0))

    return merge
