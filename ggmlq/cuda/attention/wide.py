"""Many rows on Hopper: scores and results by wgmma, the products of two steps at the same time.

A block has 64 rows of queries for each of its warpgroups that multiply. While the weights of a step are
multiplied with values the scores of the next one are made, and their exponentials taken: products and
exponentials share the time. One more warpgroup, the producer (producer.py), fills rings of two stages with
keys and values; it and the others wait for each other by barriers in shared memory.

On an H200 turns gain 1 to 2 %. What did not help: two warpgroups behind one that decodes blocks (118 µs for
512 queries of 4096, 71 with blocks decoded before).
"""

from __future__ import annotations

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
from .floats import KINDS, pair_loader
from .plan import EDGE, LANES
from .problem import (
    ADDRESSES,
    SIZES,
    STRIDES,
    block_finder,
    item_placer,
    length_of,
    look,
    queries_of,
    rows_finder,
)  # fmt: skip
from .producer import barrier_maker, producer
from .products import clearer
from .results import rows_writer
from .rows import CHUNK
from .softmax import LOG2_E, NEVER, shrinker, weights_maker
from .unrolled import unrolled
from .wide_plan import (
    GROUP,
    KEYS_FREE,
    KEYS_FULL,
    LINE,
    VALUES_FREE,
    VALUES_FULL,
    WidePlan,
    swizzled,
    wide_plans,
)

HOPPER = (9, 0)
TURNS = 3  # the barrier at which the first warpgroup waits for its turn; the second one's is the next


@cache
def query_loader(plan: WidePlan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a swizzled tile of 16-bit floats.

    Those of the tile's floats are copied, all at the same time; others are converted, pair after pair.
    """
    threads, rows_count, pairs, chunks = LANES * plan.warps, plan.rows, plan.width // 2, plan.width // 8
    load_pair, put4, copy, commit, wait = (
        pair_loader(), halves.put4, bf16x2.copy16_or_zeros, ptx.commit, ptx.wait_for_all_but(0)
    )  # fmt: skip
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed
    same = KINDS["bfloat16" if plan.k == "bf16" else "float16"]

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        if kind == uint32(same):
            for i in range(rows_count * chunks // threads):
                number = uint32(cuda.threadIdx.x) + uint32(i * threads)
                row, chunk = number // uint32(chunks), number % uint32(chunks)
                inside = row < count
                source = rows + uint64(number) * uint64(CHUNK) if inside else rows
                copy(to + swizzled(row, chunk, rows_count), source, uint32(CHUNK) if inside else uint32(0))
            commit()
            wait()
            return
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
    start_scores, start_mix = (
        score_starter(step, width, plan.kind(plan.k)),
        mix_starter(step, width_v, plan.kind(plan.v)),
    )
    keys_at, values_at, tile_k, tile_v = plan.keys_at, plan.values_at, plan.tile(width), plan.tile(width_v)
    group_rows, part_rows = 64 * LINE, plan.rows * LINE  # bytes in a part: of a warpgroup, of all
    wait, arrive, barriers_at = barriers.wait, barriers.arrive, plan.barriers_at

    @inlined
    def until_full(base: Any, full: Any, number: Any) -> Any:
        stage = number & uint32(1)
        wait(base + uint32(barriers_at) + uint32(full) + stage * uint32(8), number >> uint32(1) & uint32(1))
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
    """The device function that goes over the steps of an item; there is at least one.

    ``number``: of the first step, counted on from item to item.
    The scores of a step and the results of the one before are made together. Exponentials of the former
    are taken while the latter are still being made. Two warpgroups start their products in turns, so that one
    takes exponentials while the other multiplies.
    """
    score, mix, settle_scores, settle_alone, settle_sums = products(plan)
    weigh, shrink, pack = weights_maker(plan), shrinker(plan), packer(plan)
    step, s_count, pair_count, in_turns = plan.positions, plan.span // 2, plan.span // 4, plan.groups > 1
    wait_for_turn, give_turn = barriers.turns(LANES * plan.warps)

    @inlined
    def walk(
        o: Any, tops: Any, totals: Any, at: Any, warp: Any, first: Any, last: Any, seen: Any, column: Any,
        begins: Any, ends: Any, factor: Any, number: Any,
    ) -> None:  # fmt: skip
        s, pairs = cuda.local.array(s_count, float32), cuda.local.array(pair_count, uint32)
        ratios = cuda.local.array(2, float32)
        score(s, at, warp, number)
        settle_alone(s, at, number)
        weigh(s, first * int32(step), column, seen, begins, ends, factor, tops, totals, ratios)
        pack(0, s, pairs)
        turn = uint32(TURNS) + (warp >> uint32(2))
        other = uint32(2 * TURNS + 1) - turn
        for tile in range(first + int32(1), last):
            if in_turns:
                wait_for_turn(turn)
            score(s, at, warp, number + uint32(1))
            mix(o, pairs, at, number)
            if in_turns:
                give_turn(other)
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
def item_taker(plan: WidePlan) -> Any:
    """The device function for what an item is: its unit, rows and steps. Items are counted in their order."""
    place, find = item_placer(plan.rows), block_finder(plan.rows, plan.positions)

    @inlined
    def take(item: Any, addresses: Any, sizes: Any, units: Any) -> Any:
        unit, start = place(item, units, sizes)
        length = length_of(addresses, sizes, unit)
        count, seen, end, first, last = find(sizes, length, start)
        return unit, start, length, count, seen, end, first, last

    return take


@inlined
def next_item(item: Any) -> Any:
    """The item that a block takes next: one of each round of all blocks, which goes there and back."""
    blocks = uint32(cuda.gridDim.y)
    turn = item // blocks
    return (turn + uint32(2)) * blocks - uint32(1) - (item - turn * blocks)


@cache
def consumer(plan: WidePlan) -> Any:
    """The device function of a warpgroup that multiplies: all items of its block."""
    width, sums, in_turns = plan.width, plan.width_v // 2, plan.groups > 1
    meet, give_turn = barriers.named_barrier(1, LANES * plan.warps), barriers.turns(LANES * plan.warps)[1]
    take, load_queries, walk, write, clear = (
        item_taker(plan), query_loader(plan), walker(plan), rows_writer(plan), clearer(sums // 8),
    )  # fmt: skip

    @inlined
    def consume(at: Any, addresses: Any, sizes: Any, factor: Any, units: Any, items: Any) -> None:
        (warp, lane), number, item = warp_and_lane(), uint32(0), uint32(cuda.blockIdx.y)
        g, t = g_and_t(lane)
        begins, ends = cuda.local.array(2, int32), cuda.local.array(2, int32)
        tops, totals = cuda.local.array(2, float32), cuda.local.array(2, float32)
        o, column = cuda.local.array(sums, float32), int32(t) * int32(2)
        if in_turns and warp >= uint32(GROUP):
            give_turn(uint32(TURNS))
        while item < items:
            unit, start, length, count, seen, _, first, last = take(item, addresses, sizes, units)
            meet()  # nobody multiplies with the queries of the item before
            load_queries(at, queries_of(addresses, sizes, start, width, unit), sizes[6], count)
            look(begins, ends, start + warp * uint32(EDGE) + g, 8, sizes, length)
            clear(0, o)
            for r in range(2):
                tops[r], totals[r] = NEVER, float32(0)
            publish()
            meet()  # queries are there
            if first < last:
                walk(o, tops, totals, at, warp, first, last, seen, column, begins, ends, factor, number)
                number += uint32(last - first)
            write(o, tops, totals, start, count, addresses, sizes, unit, units)
            item = next_item(item)

    return consume


@family(wide_plans)
def kernel(plan: WidePlan) -> Kernel:
    """The kernel: block (part of the positions, number), which takes items in turn with the other blocks.

    An item is a tile of rows of a head of keys of a sequence. While its results are written, and the queries
    of the next one are read, the keys of the next one are on their way.
    """
    find_keys, find_values, rows_count = rows_finder(0), rows_finder(3), plan.rows
    produce, consume, take, make_barriers = (
        producer(plan), consumer(plan), item_taker(plan), barrier_maker(plan)
    )  # fmt: skip
    base, float_of, take_turn = ptx.shared_base, ptx.float_of, dependent_launch.take_turn
    (most, least), consumers = plan.registers, plan.warps
    give_registers, take_registers = barriers.registers("dec", least), barriers.registers("inc", most)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, units: Any) -> None:
        at = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        make_barriers(at)
        take_turn()
        items = (sizes[0] * sizes[1] + uint32(rows_count - 1)) // uint32(rows_count) * uint32(units)
        cuda.syncthreads()
        if warp_and_lane()[0] >= uint32(consumers):
            if least:
                give_registers()
            item, number = uint32(cuda.blockIdx.y), uint32(0)
            while item < items:
                unit, _, _, _, _, end, first, last = take(item, addresses, sizes, units)
                keys = find_keys(addresses[1], strides, sizes, unit)
                values = find_values(addresses[2], strides, sizes, unit)
                produce(at, keys, values, strides, first, last, end, number)
                number += uint32(max(int32(0), last - first))
                item = next_item(item)
            return
        if most:
            take_registers()
        consume(at, addresses, sizes, ptx.mul(float_of(scale), LOG2_E), units, items)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        blocks=plan.blocks, shared=plan.shared_bytes, least=HOPPER, exact=True, early=True, lto=True,
    )  # fmt: skip
