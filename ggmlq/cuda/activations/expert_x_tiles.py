"""Activations of experts as x_tiles of bfloat16: each row at the places of its uses in a plan.

The plan is that of schedule/groups.py, or of schedule/block_plan.py for few uses.
The layout is that of x_tiles.py. A row is read once and written for each of its uses. Rows without a use hold
anything; their sums are never read.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import bf16x2, codes, dependent_launch, integers, ptx
from ..intrinsics.address import address
from ..intrinsics.floats import LEAST
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..machine.launch import Kernel, family
from ..schedule.block_plan import BYTES, MOST_USES, column_ranker, planner
from ..schedule.groups import NOWHERE
from ..schedule.uses import NAN, NO_EXPERT
from .floats import sixteen_loader
from .x_tiles import THREAD_COLUMNS, THREADS, chunk_placer, chunk_swapper


@family()
def gatherer() -> Kernel:
    """The kernel that gathers rows by a plan in memory, 16 columns a thread.

    Uses without an expert get rows of NaN. It also clears ``count`` words for the next kernel.
    """
    load_floats, narrow, load4 = integers.load_floats_l2_if, bf16x2.narrowed, codes.load4
    pair, place, store4 = chunk_swapper(), chunk_placer(), ptx.store4
    let_successor_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor,
    )  # fmt: skip

    def gather(
        x: Any,  # float32 [m, k]
        x_tiles: Any,
        places: Any,  # uint32 [m · per_token]: of a plan
        y: Any,  # float32 [m · per_token, n]
        zeros: Any, count: Any,  # uint32 [count], for the next kernel
        m: Any, per_token: Any, k: Any, n: Any, sixteens: Any, height: Any,  # sixteens: of a row
    ) -> None:  # fmt: skip
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column = uint32(sixteen * uint32(THREAD_COLUMNS))
        inside = uint32(1) if row < m and column < k else uint32(0)
        # What made x had ended when the plan was begun; but this multiprocessor's first cache may be older.
        for t in range(4):
            v = load_floats(address(x, row, k, uint32(column + uint32(4 * t)), 4), inside)
            a[t], b[t] = narrow(v[0], v[1]), narrow(v[2], v[3])
        pair(sixteen, a, b)
        wait_for_predecessor()
        let_successor_start()  # not before: it reads the plan as soon as it starts
        if i < count:
            store4(zeros + uint64(i) * uint64(4), uint32(0))
        if row < m:
            use = uint32(row * per_token)
            end = uint32(use + per_token)
            while use < end:
                there = load4(places + uint64(use) * uint64(4))
                if there != uint32(NOWHERE):
                    place(x_tiles, sixteen, height, there, a, b)
                else:
                    for j in range(sixteen, n, sixteens):
                        store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + uint32(1))

    return Kernel(
        "rows of experts to x_tiles", gather, *(uint64,) * 5, *(uint32,) * 7, threads=THREADS,
        least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


@family()
def few_gatherer() -> Kernel:
    """The kernel that gathers rows for few uses: each block makes the plan for itself."""
    load, pair, place, rank = sixteen_loader(), chunk_swapper(), chunk_placer(), column_ranker()
    plan = planner(THREADS, stores_experts=True)
    base, put, store4, take4 = ptx.shared_base, ptx.put, ptx.store4, bf16x2.take4
    let_successor_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor,
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
        experts_at, places = uint32(entries + uint32(BYTES)), uint32(entries + uint32(BYTES + 4 * MOST_USES))
        first = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS))
        i = uint32(first + uint32(cuda.threadIdx.x))
        if i < count:
            store4(zeros + uint64(i) * uint64(4), uint32(0))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for t in range(4):
            a[t] = b[t] = uint32(0)
        column = uint32(sixteen * uint32(THREAD_COLUMNS))
        if row < m and column < k:
            load(address(x, row, k, column, 4), a, b)
        pair(sixteen, a, b)
        plan(entries, experts_at, ids, uint32(m * per_token), experts, columns)
        begin = uint32(uint32(first // sixteens) * per_token)
        last = min(uint32(uint32(first + uint32(THREADS - 1)) // sixteens), uint32(m - uint32(1)))
        for number in range(
            uint32(begin + warp), uint32(uint32(last + uint32(1)) * per_token), THREADS // 32
        ):
            use, to = uint32(number), uint32(NOWHERE)
            expert = uint32(take4(uint32(experts_at + use * uint32(4))))
            if expert != uint32(NO_EXPERT):
                to = rank(entries, experts_at, use, expert, columns, lane)
            if lane == uint32(0):
                put(uint32(places + uint32(use - begin) * uint32(4)), to)
                if to != uint32(NOWHERE):
                    store4(uses_of_columns + uint64(to) * uint64(4), use)
        cuda.syncthreads()
        if row < m:
            for use in range(uint32(row * per_token), uint32(uint32(row + uint32(1)) * per_token)):
                there = uint32(take4(uint32(places + uint32(uint32(use) - begin) * uint32(4))))
                if there != uint32(NOWHERE):
                    place(x_tiles, sixteen, height, there, a, b)
                else:
                    for j in range(sixteen, n, sixteens):
                        store4(address(y, uint32(use), n, j, 4), uint32(NAN))

    return Kernel(
        "rows of a few uses to x_tiles", gather, *(uint64,) * 6, *(uint32,) * 9, threads=THREADS,
        shared=BYTES + 8 * MOST_USES, least=LEAST["bfloat16"], early=True,
    )  # fmt: skip
