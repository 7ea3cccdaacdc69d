"""The kernel that adds what blocks have found in their parts of the positions, the first part first."""

from __future__ import annotations

from typing import Any

from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.lane import ALL_LANES, warp_and_lane
from ..intrinsics.language import cuda, float32, types, uint32, uint64
from ..machine.launch import Kernel, family
from .floats import pair_storer
from .plan import WIDTHS
from .slots import factor_of, weight_of
from .softmax import NEVER

THREADS, WARPS = 512, 16
FOUR = 4  # columns of a thread
MOST = 2048  # parts
ADDRESSES, SIZES = types.UniTuple(uint64, 3), types.UniTuple(uint32, 7)


@family((width,) for width in WIDTHS)
def merger(width: int) -> Kernel:
    """The kernel for parts of ``width`` columns: a block a row; threads share its columns and parts."""
    lanes = width // FOUR
    together = THREADS // lanes  # parts that are added at the same time
    store, load_floats, load8, larger = pair_storer(), ptx.load_floats, bf16x2.load8, ptx.larger
    fma, mul, add, float_of, take_turn = ptx.fma, ptx.mul, ptx.add, ptx.float_of, dependent_launch.take_turn

    def merge(
        addresses: Any,  # parts, y, sinks or 0
        sizes: Any,  # parts, rows of all, queries, group, heads of keys, kind of y, columns of y
    ) -> None:
        take_turn()
        columns = cuda.shared.array((together, width), float32)
        totals, tops = cuda.shared.array(together, float32), cuda.shared.array(WARPS, float32)
        stats = cuda.shared.array((2, MOST), float32)
        row, rows, parts = uint32(cuda.blockIdx.x), sizes[1], sizes[0]
        thread, (warp, _) = uint32(cuda.threadIdx.x), warp_and_lane()
        lane, which = thread % uint32(lanes), thread // uint32(lanes)
        stats_at = addresses[0] + uint64(parts) * uint64(rows) * uint64(4 * width) + uint64(row) * uint64(8)
        top = NEVER
        p = thread
        while p < parts:
            stat = load8(stats_at + uint64(p) * uint64(rows) * uint64(8))
            top = larger(top, float_of(stat[0]))
            stats[0, p], stats[1, p] = float_of(stat[0]), float_of(stat[1])
            p += uint32(THREADS)
        for step in (16, 8, 4, 2, 1):
            top = larger(top, cuda.shfl_xor_sync(ALL_LANES, top, step))
        tops[warp] = top
        cuda.syncthreads()
        top = NEVER
        for w in range(WARPS):
            top = larger(top, tops[w])
        total, sums = float32(0), cuda.local.array(FOUR, float32)
        for i in range(FOUR):
            sums[i] = float32(0)
        if which < uint32(together):
            p = which
            while p < parts:
                place, weight = uint64(p) * uint64(rows), weight_of(stats[0, p], top)
                at = addresses[0] + (place + uint64(row)) * uint64(4 * width) + uint64(lane) * uint64(16)
                four = load_floats(at)
                total = fma(stats[1, p], weight, total)
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

    return Kernel(f"merge {width}", merge, ADDRESSES, SIZES, threads=THREADS, least=(8, 0), early=True)
