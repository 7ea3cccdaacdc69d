"""The kernel that adds what blocks have found in their parts of the positions, the first part first."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, warp_and_lane
from ..intrinsics.language import cuda, float32, types, uint32, uint64
from ..machine.launch import Kernel, family
from .codes import pair_storer
from .plan import LANES, WIDTHS
from .softmax import NEVER, factor_of, weight_of

FEW, MANY = 512, 128  # threads of a block, where rows are few, and where they fill the card
FOUR = 4  # columns of a thread
ADDRESSES, SIZES = types.UniTuple(uint64, 3), types.UniTuple(uint32, 7)


@cache
def part_reader(width: int) -> Any:
    """The device function that reads a part of a row: its maximum, its sum of weights, four of its sums.

    A part that there is not has a maximum of minus infinity and zeros.
    """
    load_floats, load8, float_of, size = ptx.load_floats, bf16x2.load8, ptx.float_of, 4 * width

    @inlined
    def read(parts: Any, stats: Any, number: Any, lane: Any, there: Any) -> Any:
        top, total, none = NEVER, float32(0), float32(0)
        four = none, none, none, none
        if there:
            four = load_floats(parts + number * uint64(size) + uint64(lane) * uint64(16))
            stat = load8(stats + number * uint64(8))
            top, total = float_of(stat[0]), float_of(stat[1])
        return top, total, four

    return read


@inlined
def largest_of(stats: Any, rows: Any, parts: Any) -> Any:
    """The largest of a row's maxima, by each warp for itself; ``stats``: the address of the first."""
    top, p = NEVER, warp_and_lane()[1]
    while p < parts:
        top = ptx.larger(top, ptx.float_of(bf16x2.load8(stats + uint64(p) * uint64(rows) * uint64(8))[0]))
        p += uint32(LANES)
    for step in (16, 8, 4, 2, 1):
        top = ptx.larger(top, cuda.shfl_xor_sync(ALL_LANES, top, step))
    return top


@family((width, threads) for width in WIDTHS for threads in (FEW, MANY))
def merger(width: int, threads: int) -> Kernel:
    """The kernel for parts of ``width`` columns: a block a row; threads share its columns and parts."""
    lanes = width // FOUR
    together = max(1, threads // lanes)  # parts that are added at the same time
    ahead = 4 if threads == FEW else 8  # of a thread, read before the largest maximum is known
    held, noted = FOUR * ahead, 2 * ahead
    store, read, fma, mul, add, take_turn = (
        pair_storer(), part_reader(width), ptx.fma, ptx.mul, ptx.add, dependent_launch.take_turn
    )  # fmt: skip

    def merge(
        addresses: Any,  # parts, y, sinks or 0
        sizes: Any,  # parts, rows of all, queries, group, heads of keys, kind of y, columns of y
    ) -> None:
        take_turn()
        columns, totals = (
            cuda.shared.array((together, width), float32), cuda.shared.array(together, float32)
        )  # fmt: skip
        row, rows, parts = uint32(cuda.blockIdx.x), sizes[1], sizes[0]
        thread = uint32(cuda.threadIdx.x)
        lane, which = thread % uint32(lanes), thread // uint32(lanes)
        stats_at = addresses[0] + uint64(parts) * uint64(rows) * uint64(4 * width)
        fours, stats = cuda.local.array(held, float32), cuda.local.array(noted, float32)
        for i in range(ahead):
            p = which + uint32(i * together)
            number, there = uint64(p) * uint64(rows) + uint64(row), which < uint32(together) and p < parts
            stats[2 * i], stats[2 * i + 1], four = read(addresses[0], stats_at, number, lane, there)
            for j in range(FOUR):
                fours[FOUR * i + j] = four[j]
        top = largest_of(stats_at + uint64(row) * uint64(8), rows, parts)
        total, sums = float32(0), cuda.local.array(FOUR, float32)
        for i in range(FOUR):
            sums[i] = float32(0)
        for i in range(ahead):
            weight = weight_of(stats[2 * i], top)
            total = fma(stats[2 * i + 1], weight, total)
            for j in range(FOUR):
                sums[j] = fma(fours[FOUR * i + j], weight, sums[j])
        if which < uint32(together):
            p = which + uint32(ahead * together)
            while p < parts:
                number = uint64(p) * uint64(rows) + uint64(row)
                largest, share, four = read(addresses[0], stats_at, number, lane, True)
                weight = weight_of(largest, top)
                total = fma(share, weight, total)
                for i in range(FOUR):
                    sums[i] = fma(four[i], weight, sums[i])
                p += uint32(together)
            for i in range(FOUR):
                columns[which, lane * uint32(FOUR) + uint32(i)] = sums[i]
            totals[which] = total
        cuda.syncthreads()
        if thread < uint32(width // 2):
            low, high, total = float32(0), float32(0), float32(0)
            for w in range(together):
                low, high = add(low, columns[w, 2 * thread]), add(high, columns[w, 2 * thread + uint32(1)])
                total = add(total, totals[w])
            per_head = sizes[2] * sizes[3]
            head = (row // per_head) % sizes[4] * sizes[3] + row % per_head // sizes[2]
            factor = factor_of(top, total, addresses[2], head)
            size = uint64(4) if sizes[5] == uint32(0) else uint64(2)
            to = addresses[1] + uint64(row) * uint64(sizes[6]) * size
            store(to, uint64(thread), sizes[5], mul(low, factor), mul(high, factor))

    return Kernel(
        f"merge {width}, {threads} threads",
        merge,
        ADDRESSES,
        SIZES,
        threads=threads,
        least=(8, 0),
        early=True,
    )
