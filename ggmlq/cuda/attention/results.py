"""The end of a block: results divided by their sums, or a part for results.py."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, dependent_launch, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, types, uint32, uint64
from ..machine.launch import Kernel, family
from .codes import pair_storer
from .plan import EDGE, LANES, SIXTEEN, WIDTHS, Plan
from .products import LAST_PLACE, LIFTS
from .softmax import NEVER, cluster_epilogue, factor_of, pair_writer, row_combiner, slot_adder, weight_of
from .unrolled import unrolled


@cache
def rows_writer(plan: Plan) -> Any:
    """The device function that writes what the warps of a block have found, each of its own rows.

    ``units``: of all, beside the unit of the rows.
    """
    columns, width = plan.width_v // 8, plan.width_v
    store, mul, bits, whole_total = pair_storer(), ptx.mul, uint32, row_combiner(plan, ptx.add)

    def eight(j: Any, o: Any, factors: Any, places: Any, inside: Any, kind: Any, t: Any) -> None:
        for r in range(2):
            if inside[r] != bits(0):
                low, high = mul(o[4 * j + 2 * r], factors[r]), mul(o[4 * j + 2 * r + 1], factors[r])
                store(places[r], uint64(4 * j) + uint64(t), kind, low, high)

    all_columns = unrolled(columns, eight)

    @inlined
    def write(
        o: Any, tops: Any, totals: Any, start: Any, count: Any, addresses: Any, sizes: Any, unit: Any,
        units: Any,
    ) -> None:  # fmt: skip
        (warp, lane), rows = warp_and_lane(), sizes[0] * sizes[1]
        g, t = g_and_t(lane)
        factors, inside = cuda.local.array(2, float32), cuda.local.array(2, uint32)
        places, kind = cuda.local.array(2, uint64), sizes[7]
        for r in range(2):
            row, total = g + warp * uint32(EDGE) + uint32(8 * r), whole_total(totals[r])
            inside[r] = uint32(1) if row < count else uint32(0)
            row = uint32(min(start + row, rows - uint32(1)))
            number = uint64(unit) * uint64(rows) + uint64(row)
            if addresses[4] == uint64(0):
                head = (unit % sizes[3]) * sizes[1] + row // sizes[0]
                factors[r] = factor_of(tops[r], total, addresses[7], head)
                size = uint64(4) if kind == uint32(0) else uint64(2)
                places[r] = addresses[3] + number * uint64(sizes[9]) * size
            else:
                factors[r], kind = float32(1), uint32(0)
                number += uint64(cuda.blockIdx.x) * uint64(units) * uint64(rows)
                places[r] = addresses[4] + number * uint64(4 * width)
                if inside[r] != uint32(0) and t == uint32(0):
                    to = stats_of(addresses[4], rows, width, units) + number * uint64(8)
                    ptx.store_pair(to, tops[r], total)
        all_columns(0, o, factors, places, inside, kind, t)

    return write


@inlined
def stats_of(parts: Any, rows: Any, width: Any, units: Any) -> Any:
    """The address of maxima and sums behind the sums of all parts, as many as in this grid."""
    count = uint64(cuda.gridDim.x) * uint64(units) * uint64(rows)
    return parts + count * uint64(4 * width)


@cache
def slots_epilogue(plan: Plan) -> Any:
    """The device function ``finish(at, slots, start, count, addresses, sizes, parts)``: it adds slots' sums.

    ``at``: sums [slot, row, column] of a block's rows in shared memory, then maxima and sums of weights.
    ``parts``: the address of parts, or 0 for results.
    """
    pairs, width, pitch, threads = plan.width_v // 2, plan.width_v, plan.sums_pitch, plan.threads
    stats_at, store_pair, slot_rows = plan.exchanged_stats_at, ptx.store_pair, plan.rows
    add, write = slot_adder(), pair_writer()

    @inlined
    def finish(
        at: Any, slots: Any, start: Any, count: Any, addresses: Any, sizes: Any, parts: Any
    ) -> None:  # fmt: skip
        rows, number = sizes[0] * sizes[1], uint32(cuda.threadIdx.x)
        while number < count * uint32(pairs):
            row = number // uint32(pairs)
            pair = number - row * uint32(pairs)
            stats, sums = at + uint32(stats_at) + row * uint32(8), at + row * uint32(pitch * 4)
            row_sums = add(
                stats, uint32(slot_rows * 8), sums + pair * uint32(8), uint32(slot_rows * pitch * 4), slots
            )  # fmt: skip
            if parts == uint64(0):
                write(start + row, pair, row_sums, addresses, sizes)
            else:
                place = uint64(uint32(cuda.blockIdx.z)) * uint64(rows) + uint64(start + row)
                place += uint64(cuda.blockIdx.x) * uint64(cuda.gridDim.z) * uint64(rows)
                store_pair(
                    parts + place * uint64(4 * width) + uint64(pair) * uint64(8), row_sums[2], row_sums[3]
                )
                if pair == uint32(0):
                    store_pair(
                        stats_of(parts, rows, width, uint32(cuda.gridDim.z)) + place * uint64(8),
                        row_sums[0],
                        row_sums[1],
                    )
            number += uint32(threads)

    return finish


@cache
def positions_writer(plan: Plan) -> Any:
    """The device function that adds what the warps of a block have found, each at its positions."""
    columns, pitch, stats_at = plan.width_v // 8, plan.sums_pitch, plan.exchanged_stats_at
    put_pair, mul, base, finish, warps = (
        halves.put_pair,
        ptx.mul,
        ptx.shared_base,
        slots_epilogue(plan),
        plan.warps,
    )
    whole, whole_total = float32(2.0 ** (LAST_PLACE - LIFTS.get(plan.v, 0))), row_combiner(plan, ptx.add)

    def eight(j: Any, o: Any, to: Any) -> None:
        for r in range(2):
            put_pair(to + uint32(32 * j + 8 * r * pitch * 4), o[4 * j + 2 * r], o[4 * j + 2 * r + 1])

    def sixteen(j: Any, o: Any, to: Any) -> None:
        for r in range(2):
            for i in range(2):
                a, b = 8 * j + 2 * r + i, 8 * j + 4 + 2 * r + i
                put_pair(to + uint32(64 * j + 8 * i + 8 * r * pitch * 4), mul(o[a], whole), mul(o[b], whole))

    per_lane = 16 if plan.in_registers else 8  # bytes of a lane's columns
    all_columns = unrolled(columns // 2, sixteen) if plan.in_registers else unrolled(columns, eight)

    @inlined
    def write(o: Any, tops: Any, totals: Any, start: Any, count: Any, addresses: Any, sizes: Any) -> None:
        (warp, lane), at = warp_and_lane(), base()
        g, t = g_and_t(lane)
        cuda.syncthreads()
        place = warp * uint32(EDGE) + g
        all_columns(0, o, at + place * uint32(pitch * 4) + t * uint32(per_lane))
        for r in range(2):
            total = whole_total(totals[r])
            if t == uint32(0):
                put_pair(at + uint32(stats_at) + (place + uint32(8 * r)) * uint32(8), tops[r], total)
        cuda.syncthreads()
        finish(at, uint32(warps), start, count, addresses, sizes, addresses[4])

    return write


@cache
def column_placer(plan: Plan) -> Any:
    """The device function ``place(o, to, g)``: a turned lane's sums go to two rows of shared memory."""
    pitch, sixteens, name = 4 * plan.sums_pitch, plan.width_v // 16, plan.v
    put_pair, put_float, mul = halves.put_pair, bf16x2.put_float, ptx.mul
    whole = 2.0 ** (LAST_PLACE - LIFTS.get(name, 0))
    first, second = float32(whole), float32(whole if name == "q8_0" else whole / 16)

    def of_floats(n: Any, o: Any, to: Any, places: Any) -> None:
        for r in range(2):
            for i in range(2):
                put_float(to + uint32(64 * n + 32 * i + pitch * r) + places[0], o[4 * n + 2 * r + i])

    def of_blocks(n: Any, o: Any, to: Any, places: Any) -> None:
        for k in range(4):
            scale = second if k & 1 else first
            for r in range(2):
                m, at = 16 * n + 4 * k + 2 * r, to + uint32(256 * n + pitch * r)
                put_pair(at + places[k], mul(o[m], scale), mul(o[m + 1], scale))

    floats = name in SIXTEEN
    all_columns = unrolled(sixteens, of_floats) if floats else unrolled(sixteens // 4, of_blocks)

    @inlined
    def place(o: Any, to: Any, g: Any) -> None:
        places = cuda.local.array(4, uint32)
        if floats:
            places[0] = g * uint32(4)
        elif name == "q8_0":  # as turned.py reads a word of four columns
            places[2], places[3] = uint32(128) + g * uint32(16), uint32(136) + g * uint32(16)
            places[0], places[1] = g * uint32(16) - uint32(8), g * uint32(16)
            if g == uint32(0):
                places[0], places[1] = uint32(0), uint32(120)
        else:
            for k in range(4):
                places[k] = uint32(64 * k) + g * uint32(8)
        all_columns(0, o, to, places)

    return place


@cache
def turned_writer(plan: Plan) -> Any:
    """The writer of a turned plan, whose lanes 4 g + t have rows 2 t and 2 t + 1."""
    pitch, stats_at, rows = 4 * plan.sums_pitch, plan.exchanged_stats_at, plan.rows
    whole_total, share, cluster_size = (
        row_combiner(plan, ptx.add),
        cluster_epilogue(plan),
        barriers.cluster_size,
    )
    put_pair, base, finish, warps, place = (
        halves.put_pair, ptx.shared_base, slots_epilogue(plan), plan.warps, column_placer(plan),
    )  # fmt: skip

    @inlined
    def write(o: Any, tops: Any, totals: Any, start: Any, count: Any, addresses: Any, sizes: Any) -> None:
        (warp, lane), at = warp_and_lane(), base()
        g, t = g_and_t(lane)
        cuda.syncthreads()
        row = warp * uint32(rows) + uint32(2) * t
        place(o, at + row * uint32(pitch), g)
        for r in range(2):
            total = whole_total(totals[r])
            if g == uint32(0):
                put_pair(at + uint32(stats_at) + (row + uint32(r)) * uint32(8), tops[r], total)
        cuda.syncthreads()
        if cluster_size() > uint32(1):
            share(at, start, count, addresses, sizes)
        else:
            finish(at, uint32(warps), start, count, addresses, sizes, addresses[4])

    return write


@cache
def block_rows_writer(plan: Plan) -> Any:
    """The writer of rows where blocks are (part, rows, unit)."""
    write_rows = rows_writer(plan)

    @inlined
    def write(o: Any, tops: Any, totals: Any, start: Any, count: Any, addresses: Any, sizes: Any) -> None:
        unit, units = uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        write_rows(o, tops, totals, start, count, addresses, sizes, unit, units)

    return write


def writer(plan: Plan) -> Any:
    """The writer of a plan."""
    if plan.turned:
        return turned_writer(plan)
    return block_rows_writer(plan) if plan.by_rows else positions_writer(plan)


# The kernel that adds what blocks have found in their parts of the positions, the first part first.

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
