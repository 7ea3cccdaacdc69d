"""Attention of 9 to 64 rows over blocks on Hopper: keys and values are the wide operand of ``wgmma``.

A block of threads is one warpgroup. In a step it has 64 positions. Keys, 64 rows of the wide operand that
threads decode in registers, give scores [position, row] with queries, the narrow operand in shared memory.
Weights go to shared memory as the next narrow operand, and columns of values, decoded in registers, are its
wide one. So nothing that is decoded is written, and both blocks of a multiprocessor decode with all threads.

Lane 4 g + t of warp w has scores of positions 16 w + 2 g and one further, of rows 8 i + 2 t and one further.
Exponents are taken beside a base of each row. It follows the maximum only where a score exceeds it by more
than ``MARGIN``, so most steps exchange no maxima among the warps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, dependent_launch, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, four_into, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..intrinsics.warpgroup import publish
from ..intrinsics.wgmma16 import PART, register_starter, settler
from ..machine.launch import Kernel, family
from .plan import EDGE, row_bytes
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, placer, queries_of, rows_finder
from .products import clearer
from .results import slots_epilogue
from .rows import copier
from .softmax import LOG2_E, LOWEST, NEVER
from .turned_blocks import first_lane_picks
from .turned_wide_plan import (
    EIGHTS,
    HOPPER,
    LINE,
    POSITIONS,
    RAW,
    ROWS,
    STAGES,
    THREADS,
    WARPS,
    WIDTH,
    TurnedWidePlan,
    turned_wide_plans,
)
from .turned_wide_products import PAIR, column_place, first_column, key_decoder, value_decoder
from .turned_wide_weights import base_raiser, growth_teller, weigher, weight_putter
from .unrolled import unrolled


@cache
def query_reader() -> Any:
    """The device function ``read(0, rows, count, raw)``: eight columns of float16 at a time."""
    load16 = ptx.load16

    def one(i: Any, rows: Any, count: Any, raw: Any) -> None:
        number = uint32(cuda.threadIdx.x) + uint32(i * THREADS)
        for c in range(4):
            raw[4 * i + c] = uint32(0)
        if number < count * uint32(WIDTH // 8):
            four_into(raw, 4 * i, load16(rows + uint64(number) * uint64(16)))

    return unrolled(RAW // 4, one)


@cache
def query_putter(name: str) -> Any:
    """The device function ``put(to, raw)``: queries as a swizzled tile, columns as codes of keys come.

    A thread has the same columns of rows that lie eight apart.
    """
    put4, place, chunks = halves.put4, column_place(name), WIDTH // 8
    assert THREADS // chunks == 8

    def one(i: Any, to: Any, places: Any, raw: Any) -> None:
        for c in range(4):
            put4(to + places[c] + uint32(8 * LINE * i), raw[4 * i + c])

    put_all = unrolled(RAW // 4, one)

    @inlined
    def put(to: Any, raw: Any) -> None:
        thread, places = uint32(cuda.threadIdx.x), cuda.local.array(4, uint32)
        row, chunk = thread // uint32(chunks), thread % uint32(chunks)
        at = chunk // uint32(PART // 8) * uint32(ROWS * LINE) + row * uint32(LINE)
        for c in range(4):
            within = place(chunk % uint32(PART // 8) * uint32(4) + uint32(c)) * uint32(2)
            places[c] = at + (within ^ (row << uint32(4)))
        put_all(0, to, places, raw)

    return put


@cache
def fetcher(plan: TurnedWidePlan) -> Any:
    """The device function that starts the copies of a step, if there is one, by all threads."""
    copy, stage_bytes, commit = copier(plan, plan.k, WIDTH), plan.stage, ptx.commit
    keys_at, values_at = plan.keys_at, plan.values_at

    @inlined
    def fetch(
        at: Any, stage: Any, keys: Any, values: Any, strides: Any, tile: Any, last: Any, end: Any
    ) -> None:  # fmt: skip
        if tile < last:
            first, to, rank = uint32(tile * int32(POSITIONS)), uint32(end), uint32(cuda.threadIdx.x)
            copy(at + uint32(keys_at) + stage * uint32(stage_bytes), keys, strides[2], first, to, rank)
            copy(at + uint32(values_at) + stage * uint32(stage_bytes), values, strides[5], first, to, rank)
        commit()

    return fetch


# --- results ----------------------------------------------------------------------------------


@cache
def writer(plan: TurnedWidePlan) -> Any:
    """The device function that writes results, or the part of a block."""
    column_of, finish, stats_at, pitch = (
        first_column(plan.k), slots_epilogue(plan), plan.exchanged_stats_at, 4 * plan.sums_pitch
    )  # fmt: skip
    add, put_pair, put_float, take_float = ptx.add, halves.put_pair, bf16x2.put_float, bf16x2.take_float

    def eight(j: Any, o: Any, n: Any, to: Any) -> None:
        for e in range(2):
            at = 4 * EIGHTS * n + 4 * j + e
            put_pair(to + uint32((8 * j + e) * pitch), o[at], o[at + 2])

    def tell(j: Any, bases: Any, totals: Any, stats: Any, notes: Any, number: Any) -> None:
        for e in range(2):
            total, row = totals[2 * j + e], 8 * j + e
            for apart in (4, 8, 16):
                total = add(total, cuda.shfl_xor_sync(ALL_LANES, total, apart))
            if number & uint32(31) < uint32(4):
                put_float(notes + uint32(4 * row), total)
            if number < uint32(4):
                top = bases[2 * j + e]
                put_float(stats + uint32(8 * row), top if top > LOWEST else NEVER)

    place_columns, tell_all = unrolled(EIGHTS, eight), unrolled(EIGHTS, tell)

    @inlined
    def write(
        at: Any, o: Any, bases: Any, totals: Any, notes: Any, start: Any, count: Any, addresses: Any,
        sizes: Any,
    ) -> None:  # fmt: skip
        (warp, lane), number = warp_and_lane(), uint32(cuda.threadIdx.x)
        g, t = g_and_t(lane)
        cuda.syncthreads()  # nobody multiplies with what lies here
        for n in range(2):
            column = column_of(n, warp, g)
            place_columns(0, o, n, at + t * uint32(2 * pitch) + column * uint32(4))
        stats = at + uint32(stats_at)
        tell_all(
            0, bases, totals, stats + t * uint32(16), notes + warp * uint32(4 * ROWS) + t * uint32(8), number
        )
        cuda.syncthreads()
        if number < uint32(ROWS):
            total = float32(0)
            for w in range(WARPS):
                total = add(total, take_float(notes + uint32(4 * ROWS * w) + number * uint32(4)))
            put_float(stats + number * uint32(8) + uint32(4), total)
        cuda.syncthreads()
        finish(at, uint32(1), start, count, addresses, sizes, addresses[4])

    return write


# --- the kernel -------------------------------------------------------------------------------


@inlined
def stage_behind(stage: Any) -> Any:
    """The stage of the next step."""
    return stage + uint32(1) if stage + uint32(1) < uint32(STAGES) else uint32(0)


@cache
def keys_taker(plan: TurnedWidePlan) -> Any:
    """The device function that decodes a stage's keys."""
    decode, length, size = key_decoder(plan.k, WIDTH), row_bytes(plan.k, WIDTH), row_bytes(plan.k, PAIR)
    keys_at, stage_bytes = plan.keys_at, plan.stage

    @inlined
    def take(at: Any, stage: Any, places: Any, first: Any, second: Any) -> None:
        warp, lane = warp_and_lane()
        rows = at + uint32(keys_at) + stage * uint32(stage_bytes)
        rows += (warp * uint32(EDGE) + (lane >> uint32(2)) * uint32(2)) * uint32(length)
        decode(rows, places, first)
        decode(rows + uint32(size), places, second)

    return take


@cache
def scorer(plan: TurnedWidePlan) -> Any:
    """The device function that makes the scores of a step, and decodes values meanwhile."""
    decode, values_at, stage_bytes = value_decoder(plan.k, WIDTH), plan.values_at, plan.stage
    begin, go_on = register_starter(ROWS, 1, True), register_starter(ROWS, 1, False)
    settle = settler(POSITIONS * ROWS // THREADS, 0)

    @inlined
    def score(at: Any, stage: Any, first: Any, second: Any, s: Any, columns: Any) -> None:
        begin(s, first, at)
        go_on(s, second, at + uint32(ROWS * LINE))
        decode(at + uint32(values_at) + stage * uint32(stage_bytes), columns)
        every = uint32(0xFFFFFFFF)
        for k in range(4):
            every &= columns[8 * k + 3] & columns[8 * k + 7]
        if every == uint32(0xFFFFFFFF):  # NaN alone; but the assembler must not wait for scores before
            publish()
        settle(s)

    return score


@family(turned_wide_plans)
def kernel(plan: TurnedWidePlan) -> Kernel:
    """The kernel: block (part of the positions, 64 rows, head of keys of a sequence)."""
    find, find_keys, find_values, place, read_queries, put_queries, fetch = (
        block_finder(ROWS, POSITIONS), rows_finder(0), rows_finder(3), placer(ROWS), query_reader(),
        query_putter(plan.k), fetcher(plan),
    )  # fmt: skip
    take_keys, score, grows, raise_bases, weigh, put_weights, write = (
        keys_taker(plan), scorer(plan), growth_teller(), base_raiser(), weigher(), weight_putter(),
        writer(plan),
    )  # fmt: skip
    sums, scores, columns_count, bases_count, words = 8 * EIGHTS, 4 * EIGHTS, 32, 2 * EIGHTS, PART // 4
    mix, settle, clear = register_starter(ROWS, 2, False), settler(sums, 0), clearer(sums // 8)
    wait, float_of, take_turn, base, picks = (
        ptx.wait_for_all_but(STAGES - 2), ptx.float_of, dependent_launch.take_turn, ptx.shared_base,
        first_lane_picks,
    )  # fmt: skip
    notes_at, flags_at, weights_at = plan.notes_at, plan.notes_at + 4 * WARPS * ROWS, plan.weights_at

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        take_turn()
        at, (unit, start, length) = (base() + uint32(1023)) & uint32(0xFFFFFC00), place(addresses, sizes)
        count, seen, end, first, last = find(sizes, length, start)
        keys, values = (
            find_keys(addresses[1], strides, sizes, unit), find_values(addresses[2], strides, sizes, unit)
        )  # fmt: skip
        raw, places = cuda.local.array(RAW, uint32), cuda.local.array(2, uint32)
        read_queries(0, queries_of(addresses, sizes, start, WIDTH, unit), count, raw)
        for i in range(STAGES - 1):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end)
        put_queries(at, raw)
        publish()
        t = warp_and_lane()[1] & uint32(3)
        places[0], places[1] = t * uint32(4), picks(t)
        bases, totals = cuda.local.array(bases_count, float32), cuda.local.array(bases_count, float32)
        o, s = cuda.local.array(sums, float32), cuda.local.array(scores, float32)
        columns, pairs = cuda.local.array(columns_count, uint32), cuda.local.array(bases_count, uint32)
        keys_first, keys_second = cuda.local.array(words, uint32), cuda.local.array(words, uint32)
        for i in range(bases_count):
            bases[i], totals[i] = LOWEST, float32(0)
        clear(0, o)
        factor, stage, parity = ptx.mul(float_of(scale), LOG2_E), uint32(0), uint32(0)
        notes, flags = at + uint32(notes_at), at + uint32(flags_at)
        wait()
        cuda.syncthreads()  # the first stage and the queries are there
        take_keys(at, stage, places, keys_first, keys_second)
        for tile in range(first, last):
            score(at, stage, keys_first, keys_second, s, columns)
            grown = grows(
                s, tile * int32(POSITIONS), seen, start, sizes, length, bases, factor,
                flags + parity * uint32(4 * WARPS),
            )  # fmt: skip
            before = stage + uint32(STAGES - 1) if stage == uint32(0) else stage - uint32(1)
            fetch(at, before, keys, values, strides, tile + int32(STAGES - 1), last, end)
            if grown:
                raise_bases(s, o, notes, factor, bases, totals)
            weigh(0, s, bases, factor, totals, pairs)
            weights = at + uint32(weights_at) + parity * uint32(2 * ROWS * POSITIONS)
            put_weights(pairs, weights)
            publish()
            stage, parity = stage_behind(stage), uint32(1) - parity
            wait()
            cuda.syncthreads()  # weights and the next stage are there
            mix(o, columns, weights)
            take_keys(at, stage, places, keys_first, keys_second)  # behind the last: of no use
            settle(o)
        write(at, o, bases, totals, notes, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=THREADS,
        blocks=plan.blocks, shared=plan.shared_bytes, least=HOPPER, exact=True, early=True,
    )  # fmt: skip
