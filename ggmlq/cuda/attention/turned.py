"""Attention of up to eight rows: warps of their own positions, keys and values the wide operand of ``mma``.

This is a step of one sequence: the queries of a head of keys are few. A block's warps go over a part of the
positions, sixteen at a time each, and wait for nobody until the end, when they add their sums. Copies of
all stages are on their way before the first products, and each stage is filled again behind its own. While
the kernel before still runs the same rows come into the second cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from .kernel import LEAST, fetcher
from .plan import EDGE, Plan, turned_plans
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, look, placer, queries_of, rows_finder
from .products import clearer
from .results import writer
from .rows import prefetcher, query_putter, query_reader, words_of_queries
from .softmax import LOG2_E, NEVER, changer, read_options, shrinker, weights_maker
from .turned_products import turned_products


@cache
def early_reader(plan: Plan) -> Any:
    """The device function that starts to read the rows of a block that has few steps.

    The kernel before may be writing rows, and lengths: what is read here is of no use but to be near.
    """
    find, find_keys, find_values = block_finder(plan.rows, plan.positions), rows_finder(0), rows_finder(3)
    prefetch_keys, prefetch_values = (
        prefetcher(plan, plan.k, plan.width),
        prefetcher(plan, plan.v, plan.width_v),
    )
    stages, step, find_place = plan.stages, plan.positions, placer(plan.rows)

    @inlined
    def read(addresses: Any, strides: Any, sizes: Any) -> None:
        (warp, lane), (unit, start, length) = warp_and_lane(), find_place(addresses, sizes)
        _, _, end, first, last = find(sizes, length, start)
        keys = find_keys(addresses[1], strides, sizes, unit)
        values = find_values(addresses[2], strides, sizes, unit)
        if last - first > int32(stages):  # there the memory is busy
            return
        for i in range(stages):
            tile = first + int32(i)
            if tile < last:
                place = uint32(tile * int32(step)) + warp * uint32(EDGE)
                prefetch_keys(keys, strides[2], place, uint32(end), lane)
                prefetch_values(values, strides[5], place, uint32(end), lane)

    return read


@cache
def starter(plan: Plan) -> Any:
    """The device function with which a block starts: rows come near, then it waits for the kernel before."""
    cluster_size, arrive, read_early = (
        barriers.cluster_size, barriers.arrive_at_cluster_relaxed, early_reader(plan)
    )  # fmt: skip
    let_successor_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor,
    )  # fmt: skip

    @inlined
    def begin(addresses: Any, strides: Any, sizes: Any) -> None:
        if cluster_size() > uint32(1):
            arrive()  # so that others know that this block's shared memory exists
        let_successor_start()
        read_early(addresses, strides, sizes)
        wait_for_predecessor()

    return begin


@family(turned_plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (part of the positions, one, head of keys of a sequence)."""
    step, stages, options, width, sums = plan.positions, plan.stages, plan.options, plan.width, plan.sums
    pitch_k, pitch_v = plan.row_pitch(plan.k, width), plan.row_pitch(plan.v, plan.width_v)
    stage_k, stage_v = plan.stage(plan.k, width), plan.stage(plan.v, plan.width_v)
    keys_at, values_at, place_step = plan.keys_at, plan.values_at, 2 if plan.neighbours == 1 else 1
    find, fetch, (take, score, mix) = block_finder(plan.rows, step), fetcher(plan), turned_products(plan)
    read_queries, put_queries, raw_words = query_reader(plan), query_putter(plan), words_of_queries(plan)
    find_keys, find_values, change, place, weigh, shrink = (
        rows_finder(0), rows_finder(3), changer(plan), placer(plan.rows), weights_maker(plan), shrinker(plan)
    )  # fmt: skip
    write, base, clear, query_words, zeros = (
        writer(plan), ptx.shared_base, clearer(sums // 8), width // 8, width // EDGE
    )  # fmt: skip
    wait, float_of, begin = ptx.wait_for_all_but(stages - 1), ptx.float_of, starter(plan)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        begin(addresses, strides, sizes)
        (warp, lane), at, (unit, start, length) = warp_and_lane(), base(), place(addresses, sizes)
        g, t = g_and_t(lane)
        count, seen, end, first, last = find(sizes, length, start)
        keys, values = (
            find_keys(addresses[1], strides, sizes, unit), find_values(addresses[2], strides, sizes, unit)
        )  # fmt: skip
        warp_first = warp * uint32(EDGE)  # first position of the warp in a step
        begins, ends, raw = (
            cuda.local.array(2, int32), cuda.local.array(2, int32), cuda.local.array(raw_words, uint32)
        )  # fmt: skip
        read_queries(queries_of(addresses, sizes, start, width, unit), sizes[6], count, raw)
        for i in range(stages):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end, warp_first, lane)
        put_queries(at, sizes[6], raw)
        numbers, distances = cuda.local.array(4, float32), cuda.local.array(2, uint64)
        places, mask, row = cuda.local.array(3, int32), uint64(0), start + uint32(2) * t
        look(begins, ends, row, 1, sizes, length)
        if options:
            numbers[0], numbers[1] = float_of(scale), float_of(cap)
            mask = read_options(numbers, places, distances, row, 1, addresses, strides, sizes, length)
        factor = LOG2_E if options else ptx.mul(float_of(scale), LOG2_E)
        tops, totals = cuda.local.array(2, float32), cuda.local.array(2, float32)
        ratios, s, o = (
            cuda.local.array(2, float32), cuda.local.array(4, float32), cuda.local.array(sums, float32)
        )  # fmt: skip
        q, z = cuda.local.array(query_words, uint32), cuda.local.array(zeros, float32)
        clear(0, o)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        cuda.syncthreads()  # queries are there
        take(at, q, z)
        k_at, v_at = (
            at + uint32(keys_at) + warp_first * uint32(pitch_k),
            at + uint32(values_at) + warp_first * uint32(pitch_v),
        )
        column, stage = int32(warp_first) + int32(g) * int32(place_step), uint32(0)
        for tile in range(first, last):
            wait()
            cuda.syncwarp()
            score(k_at + stage * uint32(stage_k), q, z, s)
            origin = tile * int32(step)
            if options:
                change(0, s, origin + column, places, numbers, mask, distances)
            if weigh(s, origin, column, seen, begins, ends, factor, tops, totals, ratios):
                shrink(0, o, ratios)
            mix(s, v_at + stage * uint32(stage_v), o)
            cuda.syncwarp()
            fetch(at, stage, keys, values, strides, tile + int32(stages), last, end, warp_first, lane)
            stage = stage + uint32(1) if stage + uint32(1) < uint32(stages) else uint32(0)
        write(o, tops, totals, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        limits_blocks=True,
        blocks=plan.blocks, shared=plan.shared_bytes, least=LEAST, early=True,
    )  # fmt: skip
