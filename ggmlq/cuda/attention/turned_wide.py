"""Attention of 9 to 64 rows over blocks on Hopper: keys and values are the wide operand of ``wgmma``.

A block of threads is one warpgroup. In a step it has 64 positions: keys as 64 rows of the wide operand, which a
thread decodes in registers, give scores [position, row] with queries, the narrow operand in shared memory. Weights
go to shared memory as the next narrow operand, and columns of values, decoded in registers, are its wide one. So
what is decoded is never written, and two blocks of a multiprocessor decode with all their threads.

Lane 4 g + t of warp w has scores of positions 16 w + 2 g, 16 w + 2 g + 1 and of rows 8 i + 2 t, 8 i + 2 t + 1.
Exponents are taken beside a base of each row, which follows the maximum only where a score exceeds it by more than
``MARGIN``: so most steps exchange no maxima among the warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, dependent_launch, halves, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, four_into, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..intrinsics.warpgroup import publish
from ..intrinsics.wgmma16 import PART, register_starter, settler
from ..machine.launch import Kernel, family
from .plan import ALL_SHARED, BLOCKS, EDGE, LANES, aligned, row_bytes
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, placer, queries_of, rows_finder, seen_by
from .products import clearer
from .results import slots_epilogue
from .rows import copier
from .softmax import LOG2_E, LOWEST, NEVER, power_of_two
from .turned_blocks import first_lane_picks
from .turned_wide_products import PAIR, column_place, first_column, key_decoder, value_decoder
from .unrolled import unrolled

HOPPER = (9, 0)
ROWS, POSITIONS, WIDTH = 64, 64, 128  # of a block of threads; of a step; columns of keys and of values
WARPS, STAGES, LINE = 4, 4, 128  # of a warpgroup; of keys and values; bytes of a swizzled row
THREADS = LANES * WARPS
RAW = ROWS * WIDTH // 2 // THREADS  # words of queries that a thread reads
EIGHTS = ROWS // 8  # eight rows each, of which a lane has two
MARGIN = float32(8)  # powers of two by which a score may exceed the base of its row


@dataclass(frozen=True)
class TurnedWidePlan:
    """The block of one warpgroup, for keys and values of one type of blocks."""

    k: str
    width, width_v, rows, positions, span = WIDTH, WIDTH, ROWS, POSITIONS, POSITIONS
    turned, shared = False, False

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {WIDTH}/{WIDTH}, up to {ROWS} rows by wgmma, turned"

    @property
    def v(self) -> str:
        """The type of values."""
        return self.k

    threads = team = THREADS
    sums_pitch = WIDTH + 4

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        return 2

    @property
    def resident(self) -> int:
        """Blocks of which a multiprocessor's shared memory holds so many, too."""
        return min(self.blocks, ALL_SHARED // (self.shared_bytes + 1024))

    def pitch(self, width: int) -> int:
        """Bytes from row to row of a tile of 16-bit numbers, of which this plan has none that is copied."""
        return 2 * width

    @property
    def stage(self) -> int:
        """Bytes of a stage of keys, or of values."""
        return aligned(POSITIONS * row_bytes(self.k, WIDTH) + 16)

    weights_at = 2 * ROWS * WIDTH  # offset of two tiles of weights, behind the queries
    keys_at = weights_at + 2 * 2 * ROWS * POSITIONS

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.stage

    @property
    def notes_at(self) -> int:
        """Offset of what warps tell each other: maxima of rows, then whether one has grown, of two steps."""
        return self.values_at + STAGES * self.stage

    @property
    def exchanged_stats_at(self) -> int:
        """Offset of maxima and sums of weights behind the results, over everything else."""
        return 4 * ROWS * self.sums_pitch

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.notes_at + 4 * WARPS * ROWS + 4 * 2 * WARPS


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths."""
    return k == v and k in BLOCKS and width == width_v == WIDTH


def turned_wide_plans() -> Iterator[tuple[TurnedWidePlan]]:
    """The plans."""
    for name in BLOCKS:
        yield (TurnedWidePlan(name),)


@cache
def query_reader() -> Any:
    """The device function ``read(rows, count, raw)``: eight columns at a time of float16, it waits for none."""
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


# --- scores to weights ------------------------------------------------------------------------


@cache
def hider() -> Any:
    """The device function that hides positions which a row does not see; ``position``: the lane's first."""

    def eight(j: Any, s: Any, position: Any, row: Any, sizes: Any, length: Any) -> None:
        for e in range(2):
            this = min(row + uint32(8 * j + e), sizes[0] * sizes[1] - uint32(1))
            begin, end = seen_by(uint32(this) % sizes[0], sizes[0], sizes[5], sizes[4], length)
            for i in range(2):
                if position + int32(i) < begin or position + int32(i) >= end:
                    s[4 * j + 2 * i + e] = NEVER

    return unrolled(EIGHTS, eight)


@cache
def growth_finder() -> Any:
    """The device function that sets ``most[0]`` to the most by which a lane's scores exceed their bases."""
    larger, fma = ptx.larger, ptx.fma

    def eight(j: Any, s: Any, bases: Any, factor: Any, most: Any) -> None:
        for e in range(2):
            top = larger(s[4 * j + e], s[4 * j + 2 + e])
            most[0] = larger(most[0], fma(top, factor, -bases[2 * j + e]))

    return unrolled(EIGHTS, eight)


@cache
def weigher() -> Any:
    """The device function that makes weights of scores, adds them to the totals, and packs pairs of rows."""
    fma, add, exp2, narrowed = ptx.fma, ptx.add, power_of_two, halves.narrowed

    def eight(j: Any, s: Any, bases: Any, factor: Any, totals: Any, pairs: Any) -> None:
        for i in range(2):
            for e in range(2):
                s[4 * j + 2 * i + e] = exp2(fma(s[4 * j + 2 * i + e], factor, -bases[2 * j + e]))
            pairs[2 * j + i] = narrowed(s[4 * j + 2 * i], s[4 * j + 2 * i + 1])
        for e in range(2):
            totals[2 * j + e] = add(totals[2 * j + e], add(s[4 * j + e], s[4 * j + 2 + e]))

    return unrolled(EIGHTS, eight)


@cache
def base_raiser() -> Any:
    """The device function by which all warps raise the bases of their rows to the maxima of this step."""
    larger, mul, sub, exp2, put_float, take_float = (
        ptx.larger, ptx.mul, ptx.sub, power_of_two, bf16x2.put_float, bf16x2.take_float
    )  # fmt: skip

    def tell(j: Any, s: Any, to: Any, g: Any) -> None:
        for e in range(2):
            top = larger(s[4 * j + e], s[4 * j + 2 + e])
            for apart in (4, 8, 16):
                top = larger(top, cuda.shfl_xor_sync(ALL_LANES, top, apart))
            if g == uint32(0):
                put_float(to + uint32(4 * (8 * j + e)), top)

    def hear(j: Any, o: Any, maxima: Any, factor: Any, bases: Any, totals: Any) -> None:
        for e in range(2):
            top, row = NEVER, maxima + uint32(4 * (8 * j + e))
            for w in range(WARPS):
                top = larger(top, take_float(row + uint32(4 * ROWS * w)))
            base = larger(bases[2 * j + e], mul(top, factor))
            ratio = exp2(sub(bases[2 * j + e], base))
            bases[2 * j + e], totals[2 * j + e] = base, mul(totals[2 * j + e], ratio)
            for n in range(2):
                for i in range(2):
                    at = 4 * EIGHTS * n + 4 * j + 2 * i + e
                    o[at] = mul(o[at], ratio)

    tell_all, hear_all = unrolled(EIGHTS, tell), unrolled(EIGHTS, hear)

    @inlined
    def grow(s: Any, o: Any, notes: Any, factor: Any, bases: Any, totals: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        tell_all(0, s, notes + warp * uint32(4 * ROWS) + t * uint32(8), g)
        cuda.syncthreads()
        hear_all(0, o, notes + t * uint32(8), factor, bases, totals)

    return grow


@cache
def weight_putter() -> Any:
    """The device function that puts packed weights into a swizzled tile [row, position]."""
    put = halves.put_transposed

    def two(j: Any, pairs: Any, to: Any) -> None:
        n = 4 * j
        put(to + uint32(16 * LINE * j), pairs[n], pairs[n + 1], pairs[n + 2], pairs[n + 3])

    put_all = unrolled(EIGHTS // 2, two)

    @inlined
    def place(pairs: Any, tile: Any) -> None:
        warp, lane = warp_and_lane()
        row, chunk = lane & uint32(7), uint32(2) * warp + (lane >> uint32(3) & uint32(1))
        row_at = (lane >> uint32(4)) * uint32(8 * LINE) + row * uint32(LINE)
        put_all(0, pairs, tile + row_at + ((chunk ^ row) << uint32(4)))

    return place


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
        at: Any, o: Any, bases: Any, totals: Any, notes: Any, start: Any, count: Any, addresses: Any, sizes: Any
    ) -> None:  # fmt: skip
        (warp, lane), number = warp_and_lane(), uint32(cuda.threadIdx.x)
        g, t = g_and_t(lane)
        cuda.syncthreads()  # nobody multiplies with what lies here
        for n in range(2):
            column = column_of(n, warp, g)
            place_columns(0, o, n, at + t * uint32(2 * pitch) + column * uint32(4))
        stats = at + uint32(stats_at)
        tell_all(0, bases, totals, stats + t * uint32(16), notes + warp * uint32(4 * ROWS) + t * uint32(8), number)
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
    find, find_keys, find_values, place = (
        block_finder(ROWS, POSITIONS), rows_finder(0), rows_finder(3), placer(ROWS)
    )  # fmt: skip
    put_queries, fetch, score, hide, find_growth, raise_bases, weigh, put_weights, write = (
        query_putter(plan.k), fetcher(plan), scorer(plan), hider(), growth_finder(), base_raiser(), weigher(),
        weight_putter(), writer(plan),
    )  # fmt: skip
    read_queries = query_reader()
    sums, scores, columns_count, bases_count = 2 * 4 * EIGHTS, 4 * EIGHTS, 4 * 2 * 4, 2 * EIGHTS
    mix, settle, clear = register_starter(ROWS, 2, False), settler(sums, 0), clearer(sums // 8)
    wait, float_of, take_turn, base = (
        ptx.wait_for_all_but(STAGES - 2), ptx.float_of, dependent_launch.take_turn, ptx.shared_base
    )  # fmt: skip
    take_keys, words = keys_taker(plan), PART // 4
    notes_offset, flags_offset = plan.notes_at, plan.notes_at + 4 * WARPS * ROWS
    weights_at, picks, equal, put4, take16 = (
        plan.weights_at, first_lane_picks, votes.lanes_where_equal, halves.put4, ptx.take16
    )  # fmt: skip

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        take_turn()
        at = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        (warp, lane), (unit, start, length) = warp_and_lane(), place(addresses, sizes)
        g, t = g_and_t(lane)
        count, seen, end, first, last = find(sizes, length, start)
        keys, values = (
            find_keys(addresses[1], strides, sizes, unit), find_values(addresses[2], strides, sizes, unit)
        )  # fmt: skip
        raw = cuda.local.array(RAW, uint32)
        read_queries(0, queries_of(addresses, sizes, start, WIDTH, unit), count, raw)
        for i in range(STAGES - 1):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end)
        put_queries(at, raw)
        publish()
        notes, flags = at + uint32(notes_offset), at + uint32(flags_offset)
        places, most = cuda.local.array(2, uint32), cuda.local.array(1, float32)
        places[0], places[1] = t * uint32(4), picks(t)
        bases, totals = cuda.local.array(bases_count, float32), cuda.local.array(bases_count, float32)
        o, s = cuda.local.array(sums, float32), cuda.local.array(scores, float32)
        columns, pairs = cuda.local.array(columns_count, uint32), cuda.local.array(bases_count, uint32)
        for i in range(bases_count):
            bases[i], totals[i] = LOWEST, float32(0)
        clear(0, o)
        factor, stage, parity = ptx.mul(float_of(scale), LOG2_E), uint32(0), uint32(0)
        position = int32(warp * uint32(EDGE) + g * uint32(2))
        keys_first, keys_second = cuda.local.array(words, uint32), cuda.local.array(words, uint32)
        wait()
        cuda.syncthreads()  # the first stage and the queries are there
        take_keys(at, stage, places, keys_first, keys_second)
        for tile in range(first, last):
            score(at, stage, keys_first, keys_second, s, columns)
            origin = tile * int32(POSITIONS)
            if origin < seen[0] or origin + int32(POSITIONS) > seen[1]:
                hide(0, s, origin + position, start + t * uint32(2), sizes, length)
            most[0] = NEVER
            find_growth(0, s, bases, factor, most)
            same = equal(uint32(most[0] > MARGIN), uint32(0))
            if lane == uint32(0):
                put4(flags + (parity * uint32(WARPS) + warp) * uint32(4), ~uint32(same))
            cuda.syncthreads()  # the stage is free
            before = stage + uint32(STAGES - 1)
            before = before - uint32(STAGES) if before >= uint32(STAGES) else before
            fetch(at, before, keys, values, strides, tile + int32(STAGES - 1), last, end)
            told = take16(flags + parity * uint32(4 * WARPS))
            if uint32(told[0]) | uint32(told[1]) | uint32(told[2]) | uint32(told[3]) != uint32(0):
                raise_bases(s, o, notes, factor, bases, totals)
            weigh(0, s, bases, factor, totals, pairs)
            weights = at + uint32(weights_at) + parity * uint32(2 * ROWS * POSITIONS)
            put_weights(pairs, weights)
            publish()
            stage = stage + uint32(1) if stage + uint32(1) < uint32(STAGES) else uint32(0)
            wait()
            cuda.syncthreads()  # weights and the next stage are there
            mix(o, columns, weights)
            take_keys(at, stage, places, keys_first, keys_second)  # behind the last: of no use
            settle(o)
            parity = uint32(1) - parity
        write(at, o, bases, totals, notes, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=THREADS,
        blocks=plan.blocks, shared=plan.shared_bytes, least=HOPPER, exact=True, early=True,
    )  # fmt: skip
