"""Split-KV: partials of the same query rows, and how they are put together.

Whoever went over some of the positions of a row has a *partial* of it: sums o of p times values, row_max and
row_sum. Partials are merged like steps of the online softmax, and that happens at up to three places:

    warps of a block       swap_ab.py, mma.py     in shared memory: [warp, row, column], then stats
    blocks of a cluster    swap_ab.py             in each other's shared memory (DSMEM)
    blocks of a grid       all, by ``merger``     in memory: [split, unit, row, column], then stats

``stats``: pairs (row_max, row_sum), behind all sums. Order is always that of the positions, so results do not
depend on which block ends first.

A sink is one more logit without a value: it takes part in m and in the lower sum alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2, dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, types, uint32, uint64
from .kv_tiles import pair_storer
from .plan import LANES, MIN_CAPABILITY, MMA_ROWS, WIDTHS, Plan
from .softmax import LOG2_E, MINUS_INFINITY, power_of_two, reciprocal, row_reducer, unrolled

#     m = max row_max[split]
#     y = Σ o[split] · 2 ** (row_max[split] - m)  /  Σ row_sum[split] · 2 ** (row_max[split] - m)

# --- rules of merging -------------------------------------------------------------------------


@inlined
def merge_scale(row_max: Any, largest: Any) -> Any:
    """The factor of a partial with maximum ``row_max`` beside others with a larger one."""
    return power_of_two(ptx.sub(row_max, largest)) if row_max > MINUS_INFINITY else float32(0)


@inlined
def inverse_sum(row_sum: Any) -> Any:
    """1 / row_sum; 0 of a row that has seen nothing."""
    return reciprocal(row_sum) if row_sum > float32(0) else float32(0)


@inlined
def final_scale(row_max: Any, row_sum: Any, sinks: Any, head: Any) -> Any:
    """The factor that makes a row's sums its result: 1 / row_sum, in which a sink of its head takes part."""
    if sinks != 0:
        sink = ptx.mul(ptx.load_float(sinks + head * uint64(4)), LOG2_E)
        largest = ptx.larger(row_max, sink)
        scale = merge_scale(row_max, largest)
        row_sum = ptx.fma(row_sum, scale, power_of_two(ptx.sub(sink, largest)))
        return ptx.mul(scale, inverse_sum(row_sum))
    return inverse_sum(row_sum)


class MergedPair(NamedTuple):
    """Two neighbouring columns of a row's merged partials."""

    row_max: Any
    row_sum: Any
    low: Any
    high: Any


@cache
def partials_merger() -> Any:
    """The device function that merges ``count`` partials of a row in shared memory: two columns of it.

    ``stats`` and ``sums`` are addresses of the first ones, the others lie further on.
    """
    take_pair, larger, fma = ptx.take_pair, ptx.larger, ptx.fma

    @inlined
    def merge(stats: Any, stats_stride: Any, sums: Any, sums_stride: Any, count: Any) -> Any:
        row_max, row_sum, low, high = MINUS_INFINITY, float32(0), float32(0), float32(0)
        for w in range(count):  # all maxima first: then each partial is multiplied once
            row_max = larger(row_max, take_pair(stats + uint32(w) * stats_stride)[0])
        for w in range(count):
            stat = take_pair(stats + uint32(w) * stats_stride)
            two = take_pair(sums + uint32(w) * sums_stride)
            scale = merge_scale(stat[0], row_max)
            row_sum = fma(stat[1], scale, row_sum)
            low, high = fma(two[0], scale, low), fma(two[1], scale, high)
        return MergedPair(row_max, row_sum, low, high)

    return merge


@cache
def pair_writer() -> Any:
    """The device function that writes two columns of the result of a row of the block's unit."""
    store, mul = pair_storer(), ptx.mul

    @inlined
    def write(row: Any, pair: Any, merged: Any, addresses: Any, sizes: Any) -> None:
        unit, rows = uint32(cuda.blockIdx.z), sizes.queries * sizes.group
        head = (unit % sizes.kv_heads) * sizes.group + uint32(row) // sizes.queries
        factor = final_scale(merged.row_max, merged.row_sum, addresses.sinks, head)
        size = uint64(4) if sizes.y_kind == 0 else uint64(2)
        number = uint64(unit) * rows + row
        to = addresses.y + number * sizes.y_columns * size
        store(to, pair, sizes.y_kind, mul(merged.low, factor), mul(merged.high, factor))

    return write


@inlined
def stats_of(partials: Any, rows: Any, width: Any, units: Any) -> Any:
    """The address of stats behind the sums of all splits, as many as in this grid."""
    count = uint64(cuda.gridDim.x) * units * rows
    return partials + count * (4 * width)


# --- epilogues of blocks ----------------------------------------------------------------------


@cache
def rows_writer(plan: Any) -> Any:
    """The epilogue of warps with rows of their own: each writes its results, or its partials.

    ``units``: number of all, beside the unit of the rows.
    """
    columns, width = plan.width_v // 8, plan.width_v
    store, mul, bits, sum_of_row = pair_storer(), ptx.mul, uint32, row_reducer(plan, ptx.add)

    def eight(j: Any, o: Any, factors: Any, places: Any, inside: Any, kind: Any, t: Any) -> None:
        for r in range(2):
            if inside[r] != bits(0):
                low, high = mul(o[4 * j + 2 * r], factors[r]), mul(o[4 * j + 2 * r + 1], factors[r])
                store(places[r], 4 * j + t, kind, low, high)

    all_columns = unrolled(columns, eight)

    @inlined
    def write(
        o: Any, state: Any, start: Any, count: Any, addresses: Any, sizes: Any, unit: Any, units: Any
    ) -> None:  # fmt: skip
        (warp, lane), rows = warp_and_lane(), sizes.queries * sizes.group
        g, t = g_and_t(lane)
        factors, inside = cuda.local.array(2, float32), cuda.local.array(2, uint32)
        places, kind = cuda.local.array(2, uint64), sizes.y_kind
        for r in range(2):
            row, row_sum = g + warp * MMA_ROWS + uint32(8 * r), sum_of_row(state.row_sum[r])
            inside[r] = uint32(1) if row < count else uint32(0)
            # Rows past the end have the address of the last one, and are not written.
            row = uint32(min(start + row, rows - 1))
            number = uint64(unit) * rows + row
            if addresses.partials == 0:  # a result: divided, in the kind of y
                head = (unit % sizes.kv_heads) * sizes.group + row // sizes.queries
                factors[r] = final_scale(state.row_max[r], row_sum, addresses.sinks, head)
                size = uint64(4) if kind == 0 else uint64(2)
                places[r] = addresses.y + number * sizes.y_columns * size
            else:  # a partial: float32, not divided yet
                factors[r], kind = float32(1), uint32(0)
                number += uint64(cuda.blockIdx.x) * units * rows
                places[r] = addresses.partials + number * (4 * width)
                if inside[r] != 0 and t == 0:
                    to = stats_of(addresses.partials, rows, width, units) + number * 8
                    ptx.store_pair(to, state.row_max[r], row_sum)
        all_columns(0, o, factors, places, inside, kind, t)

    return write


@cache
def block_merger(plan: Plan) -> Any:
    """The epilogue of warps with positions of their own: it merges what they have put into shared memory.

    ``at``: sums [warp, row, column] of the block's rows, then stats. ``partials``: the address of the grid's
    partials, or 0 where the block has all positions and writes results.
    """
    pairs, width, pitch, threads = plan.width_v // 2, plan.width_v, plan.partials_pitch, plan.threads
    stats_at, store_pair, partial_rows = plan.partial_stats_at, ptx.store_pair, plan.rows
    merge, write = partials_merger(), pair_writer()

    @inlined
    def finish(
        at: Any, warps: Any, start: Any, count: Any, addresses: Any, sizes: Any, partials: Any
    ) -> None:  # fmt: skip
        rows, number = sizes.queries * sizes.group, uint32(cuda.threadIdx.x)
        # a thread has every so many-th pair of columns of the block's rows, neighbours have neighbours
        while number < count * pairs:
            row = number // pairs
            pair = number - row * pairs
            stats, sums = at + stats_at + row * 8, at + row * (pitch * 4)
            merged = merge(
                stats, uint32(partial_rows * 8), sums + pair * 8, uint32(partial_rows * pitch * 4),
                warps,
            )  # fmt: skip
            if partials == 0:
                write(start + row, pair, merged, addresses, sizes)
            else:
                # [split, unit, row] is [blockIdx.x, blockIdx.z, row]
                place = uint64(uint32(cuda.blockIdx.z)) * rows + uint64(start + row)
                place += uint64(cuda.blockIdx.x) * uint64(cuda.gridDim.z) * rows
                store_pair(partials + place * (4 * width) + pair * uint64(8), merged.low, merged.high)
                if pair == 0:
                    store_pair(
                        stats_of(partials, rows, width, uint32(cuda.gridDim.z)) + place * 8,
                        merged.row_max,
                        merged.row_sum,
                    )
            number += threads

    return finish


# --- the merge kernel -------------------------------------------------------------------------
#
# A block merges all partials of a row. Its threads [together, lanes] share splits and columns:
#
#     thread (w, lane)   columns 4 lane … 4 lane + 3 of splits w, w + together, w + 2 · together …
#
# then the sums of all w are added in shared memory, w = 0 first.

MERGE_THREADS, MERGE_THREADS_MANY_ROWS = 512, 128  # of a block; the latter where rows alone fill the card
QUAD_COLUMNS = 4  # columns of a thread
MERGE_ADDRESSES, MERGE_SIZES = types.UniTuple(uint64, 3), types.UniTuple(uint32, 7)


class MergeAddresses(NamedTuple):
    """Addresses of arrays."""

    partials: Any
    y: Any
    sinks: Any  # or 0


class MergeSizes(NamedTuple):
    """Numbers of 32 bits."""

    splits: Any
    rows: Any  # of all units
    queries: Any
    group: Any
    kv_heads: Any
    y_kind: Any
    y_columns: Any


class Partial(NamedTuple):
    """A split of a row: four of its sums, and its stats."""

    row_max: Any
    row_sum: Any
    quad: Any


@cache
def partial_reader(width: int) -> Any:
    """The device function that reads a split of a row; one that there is not has seen nothing."""
    load_floats, load8, float_of, size = ptx.load_floats, bf16x2.load8, ptx.float_of, 4 * width

    @inlined
    def read(partials: Any, stats: Any, number: Any, lane: Any, there: Any) -> Any:
        row_max, row_sum, none = MINUS_INFINITY, float32(0), float32(0)
        quad = none, none, none, none
        if there:
            quad = load_floats(partials + number * size + lane * uint64(16))
            stat = load8(stats + number * 8)
            row_max, row_sum = float_of(stat[0]), float_of(stat[1])
        return Partial(row_max, row_sum, quad)

    return read


@inlined
def largest_of(stats: Any, rows: Any, splits: Any) -> Any:
    """The largest of a row's maxima, by each warp for itself; ``stats``: the address of the first."""
    row_max, p = MINUS_INFINITY, warp_and_lane()[1]
    while p < splits:
        stat = bf16x2.load8(stats + p * uint64(rows) * 8)
        row_max = ptx.larger(row_max, ptx.float_of(stat[0]))
        p += LANES
    for step in (16, 8, 4, 2, 1):
        row_max = ptx.larger(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, step))
    return row_max


@family((width, threads) for width in WIDTHS for threads in (MERGE_THREADS, MERGE_THREADS_MANY_ROWS))
def merger(width: int, threads: int) -> Kernel:
    """The kernel for partials of ``width`` columns: a block a row; threads share its columns and splits."""
    lanes = width // QUAD_COLUMNS
    together = max(1, threads // lanes)  # splits that are added at the same time
    # Splits of a thread that are read before the largest maximum is known, so that their loads are in flight
    # beside those of the maxima: one wait for memory instead of two.
    ahead = 4 if threads == MERGE_THREADS else 8
    held, noted = QUAD_COLUMNS * ahead, 2 * ahead
    store, read, fma, mul, add, start_dependent = (
        pair_storer(), partial_reader(width), ptx.fma, ptx.mul, ptx.add, dependent_launch.take_turn
    )  # fmt: skip

    def merge(address_words: Any, size_words: Any) -> None:
        start_dependent()
        addresses, sizes = MergeAddresses(*address_words), MergeSizes(*size_words)
        columns, sums_of_p = (
            cuda.shared.array((together, width), float32), cuda.shared.array(together, float32)
        )  # fmt: skip
        row, rows, splits = uint32(cuda.blockIdx.x), sizes.rows, sizes.splits
        thread = uint32(cuda.threadIdx.x)
        lane, which = thread % lanes, thread // lanes
        stats_at = addresses.partials + uint64(splits) * rows * (4 * width)
        quads, stats = cuda.local.array(held, float32), cuda.local.array(noted, float32)
        for i in range(ahead):
            p = which + uint32(i * together)
            number, there = p * uint64(rows) + row, which < together and p < splits
            partial = read(addresses.partials, stats_at, number, lane, there)
            stats[2 * i], stats[2 * i + 1] = partial.row_max, partial.row_sum
            for j in range(QUAD_COLUMNS):
                quads[QUAD_COLUMNS * i + j] = partial.quad[j]
        # Each warp finds the maximum for itself: threads need not meet for it.
        row_max = largest_of(stats_at + uint64(row) * 8, rows, splits)
        row_sum, sums = float32(0), cuda.local.array(QUAD_COLUMNS, float32)
        for i in range(QUAD_COLUMNS):
            sums[i] = float32(0)
        for i in range(ahead):
            scale = merge_scale(stats[2 * i], row_max)
            row_sum = fma(stats[2 * i + 1], scale, row_sum)
            for j in range(QUAD_COLUMNS):
                sums[j] = fma(quads[QUAD_COLUMNS * i + j], scale, sums[j])
        if which < together:
            # the splits that were not read ahead, now that the maximum is known
            p = which + ahead * together
            while p < splits:
                number = p * uint64(rows) + row
                partial = read(addresses.partials, stats_at, number, lane, True)
                scale = merge_scale(partial.row_max, row_max)
                row_sum = fma(partial.row_sum, scale, row_sum)
                for i in range(QUAD_COLUMNS):
                    sums[i] = fma(partial.quad[i], scale, sums[i])
                p += together
            for i in range(QUAD_COLUMNS):
                columns[which, lane * QUAD_COLUMNS + uint32(i)] = sums[i]
            sums_of_p[which] = row_sum  # the same number from all lanes
        cuda.syncthreads()  # all w have put theirs; threads of other warps add them
        if thread < width // 2:  # two columns a thread
            low, high, row_sum = float32(0), float32(0), float32(0)
            for w in range(together):
                low, high = add(low, columns[w, 2 * thread]), add(high, columns[w, 2 * thread + 1])
                row_sum = add(row_sum, sums_of_p[w])
            per_head = sizes.queries * sizes.group
            head = (row // per_head) % sizes.kv_heads * sizes.group + row % per_head // sizes.queries
            factor = final_scale(row_max, row_sum, addresses.sinks, head)
            size = uint64(4) if sizes.y_kind == 0 else uint64(2)
            to = addresses.y + uint64(row) * sizes.y_columns * size
            store(to, uint64(thread), sizes.y_kind, mul(low, factor), mul(high, factor))

    return Kernel(
        f"merge {width}, {threads} threads",
        merge,
        MERGE_ADDRESSES,
        MERGE_SIZES,
        threads=threads,
        least=MIN_CAPABILITY,
        early=True,
    )
