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
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from .kv_tiles import store_pair
from .parameters import words_of
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
        sink = ptx.mul(ptx.load_float(sinks + head * 4), LOG2_E)
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


@inlined
def merge_partials(stats: Any, stats_stride: Any, sums: Any, sums_stride: Any, count: Any) -> Any:
    """Merge ``count`` partials of a row in shared memory: two columns of it.

    ``stats`` and ``sums`` are addresses of the first ones, the others lie further on.
    """
    row_max, row_sum, low, high = MINUS_INFINITY, float32(0), float32(0), float32(0)
    for w in range(count):  # all maxima first: then each partial is multiplied once
        row_max = ptx.larger(row_max, ptx.take_pair(stats + uint32(w) * stats_stride)[0])
    for w in range(count):
        stat = ptx.take_pair(stats + uint32(w) * stats_stride)
        two = ptx.take_pair(sums + uint32(w) * sums_stride)
        scale = merge_scale(stat[0], row_max)
        row_sum = ptx.fma(stat[1], scale, row_sum)
        low, high = ptx.fma(two[0], scale, low), ptx.fma(two[1], scale, high)
    return MergedPair(row_max, row_sum, low, high)


@cache
def warps_merger(plan: Plan) -> Any:
    """The device function that merges the partials of a block's warps: two columns of one of its rows.

    ``at``: sums [warp, row, column], and behind all of them stats [warp, row].
    """
    row_bytes, rows, stats_at, warps = 4 * plan.partials_pitch, plan.rows, plan.partial_stats_at, plan.warps

    @inlined
    def merge_warps(at: Any, row: Any, pair: Any) -> Any:
        stats, sums = at + stats_at + row * 8, at + row * row_bytes
        return merge_partials(
            stats, uint32(rows * 8), sums + pair * 8, uint32(rows * row_bytes), uint32(warps)
        )

    return merge_warps


@inlined
def write_pair(row: Any, pair: Any, merged: Any, addresses: Any, sizes: Any) -> None:
    """Write two columns of the result of a row of the block's unit."""
    unit, rows = uint32(cuda.blockIdx.z), sizes.queries * sizes.group
    head = (unit % sizes.kv_heads) * sizes.group + uint32(row) // sizes.queries
    factor = final_scale(merged.row_max, merged.row_sum, addresses.sinks, head)
    size = uint64(4) if sizes.y_kind == 0 else uint64(2)
    number = unit * rows + row
    to = addresses.y + number * sizes.y_columns * size
    store_pair(to, pair, sizes.y_kind, ptx.mul(merged.low, factor), ptx.mul(merged.high, factor))


@inlined
def stats_of(partials: Any, rows: Any, width: Any, units: Any) -> Any:
    """The address of stats behind the sums of all splits, as many as in this grid."""
    count = uint64(cuda.gridDim.x) * units * rows
    return partials + count * (4 * width)


# --- epilogues of blocks ----------------------------------------------------------------------


@cache
def rows_writer(plan: Any) -> Any:
    """The epilogue of warps with rows of their own: each writes its results, or its partials."""
    columns, width, sum_of_row = plan.width_v // 8, plan.width_v, row_reducer(plan, ptx.add)

    def eight(j: Any, o: Any, factors: Any, places: Any, inside: Any, kind: Any, t: Any) -> None:
        for r in range(2):
            if inside[r] != 0:
                low, high = ptx.mul(o[4 * j + 2 * r], factors[r]), ptx.mul(o[4 * j + 2 * r + 1], factors[r])
                store_pair(places[r], 4 * j + t, kind, low, high)

    all_columns = unrolled(columns, eight)

    @inlined
    def write(o: Any, state: Any, work: Any, arguments: Any) -> None:
        addresses, sizes, unit = arguments.addresses, arguments.sizes, work.place.unit
        (warp, lane), rows = warp_and_lane(), sizes.queries * sizes.group
        g, t = g_and_t(lane)
        factors, inside = cuda.local.array(2, float32), cuda.local.array(2, uint32)
        places, kind = cuda.local.array(2, uint64), sizes.y_kind
        for r in range(2):
            row, row_sum = g + warp * MMA_ROWS + uint32(8 * r), sum_of_row(state.row_sum[r])
            inside[r] = uint32(1) if row < work.kv.rows else uint32(0)
            # Rows past the end have the address of the last one, and are not written.
            row = uint32(min(work.place.first_row + row, rows - 1))
            number = uint64(unit) * rows + row
            if addresses.partials == 0:  # a result: divided, in the kind of y
                head = (unit % sizes.kv_heads) * sizes.group + row // sizes.queries
                factors[r] = final_scale(state.row_max[r], row_sum, addresses.sinks, head)
                size = uint64(4) if kind == 0 else uint64(2)
                places[r] = addresses.y + number * sizes.y_columns * size
            else:  # a partial: float32, not divided yet
                factors[r], kind = float32(1), uint32(0)
                number += uint64(cuda.blockIdx.x) * work.place.units * rows
                places[r] = addresses.partials + number * (4 * width)
                if inside[r] != 0 and t == 0:
                    to = stats_of(addresses.partials, rows, width, work.place.units) + number * 8
                    ptx.store_pair(to, state.row_max[r], row_sum)
        all_columns(o, factors, places, inside, kind, t)

    return write


@cache
def block_merger(plan: Plan) -> Any:
    """The epilogue of warps with positions of their own: it merges what they have put into shared memory.

    ``at``: their partials (:func:`warps_merger`). Where the block has all positions it writes results, else
    partials of the grid.
    """
    pairs, width, threads, merge_warps = plan.width_v // 2, plan.width_v, plan.threads, warps_merger(plan)

    @inlined
    def finish(at: Any, work: Any, arguments: Any) -> None:
        addresses, sizes, partials = arguments.addresses, arguments.sizes, arguments.addresses.partials
        rows, number = sizes.queries * sizes.group, uint32(cuda.threadIdx.x)
        # a thread has every so many-th pair of columns of the block's rows, neighbours have neighbours
        while number < work.kv.rows * pairs:
            row = number // pairs
            pair = number - row * pairs
            merged = merge_warps(at, row, pair)
            if partials == 0:
                write_pair(work.place.first_row + row, pair, merged, addresses, sizes)
            else:
                # [split, unit, row] is [blockIdx.x, blockIdx.z, row]
                place = uint32(cuda.blockIdx.z) * rows + uint64(work.place.first_row + row)
                place += uint64(cuda.blockIdx.x) * uint64(cuda.gridDim.z) * rows
                ptx.store_pair(partials + place * (4 * width) + pair * 8, merged.low, merged.high)
                if pair == 0:
                    ptx.store_pair(
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


@inlined
def read_partial(partials: Any, width: Any, stats: Any, number: Any, lane: Any, there: Any) -> Any:
    """Read a split of a row of ``width`` columns; one that there is not has seen nothing."""
    row_max, row_sum, none = MINUS_INFINITY, float32(0), float32(0)
    quad = none, none, none, none
    if there:
        quad = ptx.load_floats(partials + number * (4 * width) + lane * 16)
        stat = ptx.load8(stats + number * 8)
        row_max, row_sum = ptx.float_of(stat[0]), ptx.float_of(stat[1])
    return Partial(row_max, row_sum, quad)


@inlined
def largest_of(stats: Any, rows: Any, splits: Any) -> Any:
    """The largest of a row's maxima, by each warp for itself; ``stats``: the address of the first."""
    row_max, p = MINUS_INFINITY, warp_and_lane()[1]
    while p < splits:
        stat = ptx.load8(stats + p * rows * 8)
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

    def merge(address_words: Any, size_words: Any) -> None:
        hopper.take_turn()
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
            number, there = p * rows + row, which < together and p < splits
            partial = read_partial(addresses.partials, width, stats_at, number, lane, there)
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
            row_sum = ptx.fma(stats[2 * i + 1], scale, row_sum)
            for j in range(QUAD_COLUMNS):
                sums[j] = ptx.fma(quads[QUAD_COLUMNS * i + j], scale, sums[j])
        if which < together:
            # the splits that were not read ahead, now that the maximum is known
            p = which + ahead * together
            while p < splits:
                number = p * rows + row
                partial = read_partial(addresses.partials, width, stats_at, number, lane, True)
                scale = merge_scale(partial.row_max, row_max)
                row_sum = ptx.fma(partial.row_sum, scale, row_sum)
                for i in range(QUAD_COLUMNS):
                    sums[i] = ptx.fma(partial.quad[i], scale, sums[i])
                p += together
            for i in range(QUAD_COLUMNS):
                columns[which, lane * QUAD_COLUMNS + uint32(i)] = sums[i]
            sums_of_p[which] = row_sum  # the same number from all lanes
        cuda.syncthreads()  # all w have put theirs; threads of other warps add them
        if thread < width // 2:  # two columns a thread
            low, high, row_sum = float32(0), float32(0), float32(0)
            for w in range(together):
                low, high = ptx.add(low, columns[w, 2 * thread]), ptx.add(high, columns[w, 2 * thread + 1])
                row_sum = ptx.add(row_sum, sums_of_p[w])
            per_head = sizes.queries * sizes.group
            head = (row // per_head) % sizes.kv_heads * sizes.group + row % per_head // sizes.queries
            factor = final_scale(row_max, row_sum, addresses.sinks, head)
            size = uint64(4) if sizes.y_kind == 0 else uint64(2)
            to = addresses.y + uint64(row) * sizes.y_columns * size
            store_pair(to, uint64(thread), sizes.y_kind, ptx.mul(low, factor), ptx.mul(high, factor))

    parameters = words_of(uint64, MergeAddresses), words_of(uint32, MergeSizes)
    name = f"merge {width}, {threads} threads"
    return Kernel(name, merge, *parameters, threads=threads, least=MIN_CAPABILITY, early=True)
