"""Many rows on Hopper: scores and results by wgmma, the products of two steps at the same time.

A block has 128 rows of queries, 64 for each of its two warpgroups. While the weights of a step are multiplied
with values the scores of the next one are made, and their exponentials taken: products and exponentials
share the time. A third warpgroup, the producer, copies keys and values into rings of two stages; it and the
others wait for each other by barriers in shared memory, and those two never wait for one another.
Keys and values are in 16 bits; blocks are decoded before the launch, once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, dependent_launch, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..intrinsics.warpgroup import publish
from ..intrinsics.wgmma16 import mix_starter, score_starter, settler
from ..machine.launch import Kernel, family
from .floats import pair_loader
from .plan import EDGE, LANES, SIXTEEN, WIDTHS
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, length_of, look, queries_of, rows_finder
from .products import clearer
from .results import rows_writer
from .rows import CHUNK
from .softmax import LOG2_E, NEVER, shrinker, weights_maker
from .unrolled import unrolled

HOPPER = (9, 0)
WARPS, PRODUCERS = 8, 4  # warps that multiply, and that copy
STAGES, LINE = 2, 128  # of keys and of values; bytes of a swizzled row
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 224, 56  # of a thread, which starts with 168
# Offsets of the barriers of both stages of keys, and of values: it is full, or free.
KEYS_FULL, KEYS_FREE, VALUES_FULL, VALUES_FREE, BARRIERS = 0, 16, 32, 48, 64


@dataclass(frozen=True)
class WidePlan:
    """The block of 128 rows for keys and values of 16 bits."""

    k: str
    v: str
    width: int  # columns of a key, a multiple of 64
    width_v: int
    by_rows, shared, resident = True, False, 1
    turned, neighbours = False, 1

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {self.width}/{self.width_v}, by wgmma"

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's last."""
        return LANES * (WARPS + PRODUCERS)

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return EDGE * WARPS

    @property
    def positions(self) -> int:
        """Positions of a step."""
        return 128 if self.width <= 192 and self.width_v <= 128 else 64

    @property
    def span(self) -> int:
        """Positions of a step that a warp has: all."""
        return self.positions

    @property
    def fours(self) -> int:
        """Scores of a lane, four at a time."""
        return self.positions // 8

    @property
    def sums(self) -> int:
        """Sums of a lane."""
        return self.width_v // 2

    def tile(self, width: int) -> int:
        """Bytes of a tile of keys or values."""
        return 2 * self.positions * width

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys."""
        return 2 * self.rows * self.width

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.tile(self.width)

    @property
    def barriers_at(self) -> int:
        """Offset of the barriers."""
        return self.values_at + STAGES * self.tile(self.width_v)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.barriers_at + BARRIERS


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths."""
    fits = width in WIDTHS and width_v in WIDTHS
    return fits and k in SIXTEEN and v in SIXTEEN


@inlined
def swizzled(row: Any, chunk: Any, rows: Any) -> Any:
    """The offset of 16 bytes of a tile: parts of 64 columns, chunks of a row exchanged."""
    part, within = chunk >> uint32(3), chunk & uint32(7)
    return (part * uint32(rows) + row) * uint32(LINE) + ((within ^ (row & uint32(7))) << uint32(4))


@cache
def tile_copier(plan: WidePlan, width: int) -> Any:
    """The device function ``copy(to, rows, apart, first, end)`` of the producer: positions ``first`` … as a tile.

    A warp copies a part of them, some rows at once, eight in a few steps, in which chunks are exchanged otherwise.
    """
    positions, own, per_row = plan.positions, plan.positions // PRODUCERS, 2 * width // CHUNK
    together = LANES // per_row  # rows that the warp copies at once
    steps, copy16, copy16_or_zeros = 8 // together, ptx.copy16, bf16x2.copy16_or_zeros

    @inlined
    def copy(to: Any, rows: Any, apart: Any, first: Any, end: Any) -> None:
        warp, lane = warp_and_lane()
        row, chunk = lane // uint32(per_row), lane % uint32(per_row)
        part, within = chunk >> uint32(3), (chunk & uint32(7)) ^ row
        row += (warp - uint32(WARPS)) * uint32(own)
        to += (part * uint32(positions) + row) * uint32(LINE)
        position, source = first + row, rows + uint64(first + row) * apart + uint64(chunk * uint32(CHUNK))
        step = uint64(together) * apart
        if first + uint32(positions) <= end:
            for _ in range(own // 8):
                for j in range(steps):
                    place = (within ^ uint32(j * together)) << uint32(4)
                    copy16(to + place + uint32(j * together * LINE), source)
                    source += step
                to += uint32(8 * LINE)
            return
        for _ in range(own // 8):
            for j in range(steps):
                place = to + ((within ^ uint32(j * together)) << uint32(4)) + uint32(j * together * LINE)
                inside = position < end
                copy16_or_zeros(place, source if inside else rows, uint32(CHUNK) if inside else uint32(0))
                source, position = source + step, position + uint32(together)
            to += uint32(8 * LINE)

    return copy


@cache
def query_loader(plan: WidePlan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a swizzled tile of 16-bit floats."""
    threads, rows_count, pairs = LANES * WARPS, plan.rows, plan.width // 2
    load_pair, put4 = pair_loader(), halves.put4
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        for i in range(rows_count * pairs // threads):
            number = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row, pair = number // uint32(pairs), number % uint32(pairs)
            word = uint32(0)
            if row < count:
                low, high = load_pair(rows, uint64(row) * uint64(pairs) + uint64(pair), kind)
                word = narrowed(low, high)
            put4(to + swizzled(row, pair >> uint32(2), rows_count) + (pair & uint32(3)) * uint32(4), word)

    return load


def packer(plan: WidePlan) -> Any:
    """The device function that rounds weights to pairs of 16 bits."""
    narrowed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed

    def four(j: Any, s: Any, pairs: Any) -> None:
        for i in range(4):
            pairs[4 * j + i] = narrowed(s[8 * j + 2 * i], s[8 * j + 2 * i + 1])

    return unrolled(plan.span // 16, four)


@cache
def fetcher(plan: WidePlan, values: bool) -> Any:
    """The device function by which the producer fills a stage with the keys, or values, of a step."""
    at, width = (plan.values_at, plan.width_v) if values else (plan.keys_at, plan.width)
    copy, step, tile_bytes = tile_copier(plan, width), plan.positions, plan.tile(width)
    stride, full, free = (5, VALUES_FULL, VALUES_FREE) if values else (2, KEYS_FULL, KEYS_FREE)
    full, free = full + plan.barriers_at, free + plan.barriers_at
    wait, arrive = barriers.wait, barriers.arrive_when_copied

    @inlined
    def fetch(base: Any, rows: Any, strides: Any, tile: Any, number: Any, end: Any) -> None:
        stage, turn = number & uint32(1), number >> uint32(1) & uint32(1)
        wait(base + uint32(free) + stage * uint32(8), turn ^ uint32(1))
        to = base + uint32(at) + stage * uint32(tile_bytes)
        copy(to, rows, strides[stride], uint32(tile * int32(step)), uint32(end))
        arrive(base + uint32(full) + stage * uint32(8))

    return fetch


@cache
def producer(plan: WidePlan) -> Any:
    """The device function of the warp that copies keys and values of all steps."""
    fetch_keys, fetch_values = fetcher(plan, False), fetcher(plan, True)

    @inlined
    def produce(at: Any, keys: Any, values: Any, strides: Any, first: Any, last: Any, end: Any) -> None:
        for tile in range(first, last):
            number = uint32(tile - first)
            if tile == first:
                fetch_keys(at, keys, strides, tile, number, end)
            if tile + int32(1) < last:
                fetch_keys(at, keys, strides, tile + int32(1), number + uint32(1), end)
            fetch_values(at, values, strides, tile, number, end)

    return produce


class Products(NamedTuple):
    """Device functions that start the products of a step, once its stage is full, and wait for them.

    Steps are numbered from 0. Sums that were waited for leave their stage free.
    """

    score: Any  # (s, base, warp, number): scores of a step
    mix: Any  # (o, pairs, base, number): weights of a step times its values
    settle_scores: Any  # (s, base, number), while values are still being mixed
    settle_alone: Any
    settle_sums: Any  # (o, base, number)


@cache
def products(plan: WidePlan) -> Products:
    """The products of a plan."""
    step, width, width_v = plan.positions, plan.width, plan.width_v
    start_scores, start_mix = score_starter(step, width, plan.k), mix_starter(step, width_v, plan.v)
    keys_at, values_at, tile_k, tile_v = plan.keys_at, plan.values_at, plan.tile(width), plan.tile(width_v)
    group_rows, part_rows = 64 * LINE, plan.rows * LINE  # bytes in a part: of a warpgroup, of all
    wait, arrive, barriers_at = barriers.wait, barriers.arrive, plan.barriers_at

    @inlined
    def until_full(base: Any, full: Any, number: Any) -> Any:
        stage = number & uint32(1)
        wait(base + uint32(barriers_at) + uint32(full) + stage * uint32(8), number >> uint32(1) & uint32(1))
        publish()
        return stage

    @inlined
    def leave(base: Any, free: Any, number: Any) -> None:
        if warp_and_lane()[1] == uint32(0):
            arrive(base + uint32(barriers_at) + uint32(free) + (number & uint32(1)) * uint32(8))

    @inlined
    def score(s: Any, base: Any, warp: Any, number: Any) -> None:
        keys = base + uint32(keys_at) + until_full(base, KEYS_FULL, number) * uint32(tile_k)
        start_scores(s, base + (warp >> uint32(2)) * uint32(group_rows), keys, uint32(part_rows))

    @inlined
    def mix(o: Any, pairs: Any, base: Any, number: Any) -> None:
        start_mix(o, pairs, base + uint32(values_at) + until_full(base, VALUES_FULL, number) * uint32(tile_v))

    def settler_of(settle: Any, free: int) -> Any:
        @inlined
        def settled(sums: Any, base: Any, number: Any) -> None:
            settle(sums)
            leave(base, free, number)

        return settled

    scores = step // 2
    return Products(
        score, mix, settler_of(settler(scores, 1), KEYS_FREE), settler_of(settler(scores, 0), KEYS_FREE),
        settler_of(settler(width_v // 2, 0), VALUES_FREE),
    )  # fmt: skip


@cache
def walker(plan: WidePlan) -> Any:
    """The device function that goes over the steps of a block; there is at least one.

    The scores of a step and the results of the one before are made together. Exponentials of the former
    are taken while the latter are still being made.
    """
    score, mix, settle_scores, settle_alone, settle_sums = products(plan)
    weigh, shrink, pack = weights_maker(plan), shrinker(plan), packer(plan)
    step, s_count, pair_count = plan.positions, plan.span // 2, plan.span // 4

    @inlined
    def walk(
        o: Any, tops: Any, totals: Any, at: Any, warp: Any, first: Any, last: Any, seen: Any, column: Any,
        begins: Any, ends: Any, factor: Any,
    ) -> None:  # fmt: skip
        s, pairs = cuda.local.array(s_count, float32), cuda.local.array(pair_count, uint32)
        ratios, number = cuda.local.array(2, float32), uint32(0)
        score(s, at, warp, number)
        settle_alone(s, at, number)
        weigh(s, first * int32(step), column, seen, begins, ends, factor, tops, totals, ratios)
        pack(0, s, pairs)
        for tile in range(first + int32(1), last):
            score(s, at, warp, number + uint32(1))
            mix(o, pairs, at, number)
            settle_scores(s, at, number + uint32(1))
            grown = weigh(s, tile * int32(step), column, seen, begins, ends, factor, tops, totals, ratios)
            if ptx.add(totals[0], totals[1]) < float32(0):  # never; but the assembler must not wait before
                publish()
            settle_sums(o, at, number)
            if grown:
                shrink(0, o, ratios)
            pack(0, s, pairs)
            number += uint32(1)
        mix(o, pairs, at, number)
        settle_sums(o, at, number)

    return walk


@cache
def barrier_maker(plan: WidePlan) -> Any:
    """The device function by which one thread makes the barriers."""
    init, publish_barriers, at = barriers.init, barriers.publish_barriers, plan.barriers_at

    @inlined
    def make(base: Any) -> None:
        if cuda.threadIdx.x == uint32(0):
            for stage in range(STAGES):
                place = base + uint32(at) + uint32(8 * stage)
                init(place + uint32(KEYS_FULL), uint32(LANES * PRODUCERS))
                init(place + uint32(KEYS_FREE), uint32(WARPS))
                init(place + uint32(VALUES_FULL), uint32(LANES * PRODUCERS))
                init(place + uint32(VALUES_FREE), uint32(WARPS))
            publish_barriers()

    return make


@family((WidePlan(kind, kind, width, width),) for kind in SIXTEEN for width in WIDTHS)
def kernel(plan: WidePlan) -> Kernel:
    """The kernel: block (part of the positions, rows of a head of keys, head of keys of a sequence)."""
    width, sums = plan.width, plan.width_v // 2
    find, find_keys, find_values = block_finder(plan.rows, plan.positions), rows_finder(0), rows_finder(3)
    produce, load_queries, walk, make_barriers = (
        producer(plan), query_loader(plan), walker(plan), barrier_maker(plan),
    )  # fmt: skip
    write, clear, base, meet = (
        rows_writer(plan), clearer(sums // 8), ptx.shared_base, barriers.named_barrier(1, LANES * WARPS),
    )  # fmt: skip
    float_of, take_turn = ptx.float_of, dependent_launch.take_turn
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        at = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        make_barriers(at)
        take_turn()
        (warp, lane), length = warp_and_lane(), length_of(addresses, sizes)
        g, t = g_and_t(lane)
        start, count, seen, end, first, last = find(sizes, length)
        cuda.syncthreads()
        if warp >= uint32(WARPS):
            give()
            keys = find_keys(addresses[1], strides, sizes)
            produce(at, keys, find_values(addresses[2], strides, sizes), strides, first, last, end)
            return
        take()
        load_queries(at, queries_of(addresses, sizes, start, width), sizes[6], count)
        begins, ends = cuda.local.array(2, int32), cuda.local.array(2, int32)
        look(begins, ends, start + warp * uint32(EDGE) + g, 8, sizes, length)
        tops, totals = cuda.local.array(2, float32), cuda.local.array(2, float32)
        o, column = cuda.local.array(sums, float32), int32(t) * int32(2)
        factor = ptx.mul(float_of(scale), LOG2_E)
        clear(0, o)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        publish()
        meet()  # queries are there
        if first < last:
            walk(o, tops, totals, at, warp, first, last, seen, column, begins, ends, factor)
        write(o, tops, totals, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        shared=plan.shared_bytes, least=HOPPER, exact=True, early=True, lto=True,
    )  # fmt: skip
