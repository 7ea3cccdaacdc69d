"""Many rows on Hopper: scores and results by wgmma, the products of two steps at the same time.

A block has 64 rows of queries for each of its warpgroups that multiply. While the weights of a step are
multiplied with values the scores of the next one are made, and their exponentials taken: products and
exponentials share the time. One more warpgroup, the producer (wide.py), fills rings of two stages with
keys and values; it and the others wait for each other by barriers in shared memory.

On an H200 turns gain 1 to 2 %. What did not help: two warpgroups behind one that decodes blocks (118 µs for
512 queries of 4096, 71 with blocks decoded before).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, dependent_launch, halves, integers, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..intrinsics.wgmma import mix_starter, publish, score_starter, settler
from ..machine.launch import Kernel, family
from .codes import EIGHT, KINDS, decoder, pair_loader, unit_columns
from .plan import (
    COPIED,
    EDGE,
    GROUP,
    KEYS_FREE,
    KEYS_FULL,
    LANES,
    LINE,
    PRODUCERS,
    SIXTEEN,
    STAGES,
    VALUES_FREE,
    VALUES_FULL,
    WidePlan,
    row_bytes,
    swizzled,
    wide_plans,
)
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
from .products import clearer
from .results import rows_writer
from .rows import CHUNK, copier
from .softmax import LOG2_E, NEVER, shrinker, weights_maker
from .unrolled import unrolled

# The producer of wide.py: a warpgroup that fills stages with tiles of keys and values.
#
# Floats are copied to where they are multiplied. Blocks are copied as they are stored, some tiles ahead, and
# decoded into their stage by the same threads. Tiles come in the order in which they are needed: the scores
# of a step are made beside the values of the one before.
#
#     K0  K1  V0  K2  V1  …


@cache
def barrier_maker(plan: WidePlan) -> Any:
    """The device function by which one thread makes the barriers of stages."""
    init, publish_barriers, at = barriers.init, barriers.publish_barriers, plan.barriers_at
    full, free = plan.team, plan.warps

    @inlined
    def make(base: Any) -> None:
        if cuda.threadIdx.x == uint32(0):
            for stage in range(STAGES):
                place = base + uint32(at) + uint32(8 * stage)
                init(place + uint32(KEYS_FULL), uint32(full))
                init(place + uint32(KEYS_FREE), uint32(free))
                init(place + uint32(VALUES_FULL), uint32(full))
                init(place + uint32(VALUES_FREE), uint32(free))
            publish_barriers()

    return make


def producer(plan: WidePlan) -> Any:
    """The device function ``produce(at, keys, values, strides, first, last, end, number)`` of an item.

    ``number``: of its first step, counted on from item to item.
    """
    return float_producer(plan) if plan.k in SIXTEEN else block_producer(plan)


@cache
def stage_waiter(plan: WidePlan, values: bool) -> Any:
    """The device function that waits until a step's stage is free: the stage, and the address of its tile."""
    at, tile = (plan.values_at, plan.tile(plan.width_v)) if values else (plan.keys_at, plan.tile(plan.width))
    free, wait = plan.barriers_at + (VALUES_FREE if values else KEYS_FREE), barriers.wait

    @inlined
    def wait_for(base: Any, number: Any) -> Any:
        stage, turn = number & uint32(1), number >> uint32(1) & uint32(1)
        wait(base + uint32(free) + stage * uint32(8), turn ^ uint32(1))
        return stage, base + uint32(at) + stage * uint32(tile)

    return wait_for


# --- floats -----------------------------------------------------------------------------------


@cache
def tile_copier(plan: WidePlan, width: int) -> Any:
    """The device function ``copy(to, rows, apart, first, end)``: positions ``first`` … as a tile.

    A warp copies a part of them, some rows at once, eight in a few steps, with chunks exchanged otherwise.
    """
    positions, each, per_row = plan.positions, plan.positions // PRODUCERS, 2 * width // CHUNK
    together = LANES // per_row  # rows that the warp copies at once
    steps, copy16, copy16_or_zeros, consumers = 8 // together, ptx.copy16, bf16x2.copy16_or_zeros, plan.warps

    @inlined
    def copy(to: Any, rows: Any, apart: Any, first: Any, end: Any) -> None:
        warp, lane = warp_and_lane()
        row, chunk = lane // uint32(per_row), lane % uint32(per_row)
        part, within = chunk >> uint32(3), (chunk & uint32(7)) ^ row
        row += (warp - uint32(consumers)) * uint32(each)
        to += (part * uint32(positions) + row) * uint32(LINE)
        position, source = first + row, rows + uint64(first + row) * apart + uint64(chunk * uint32(CHUNK))
        step = uint64(together) * apart
        if first + uint32(positions) <= end:
            for _ in range(each // 8):
                for j in range(steps):
                    place = (within ^ uint32(j * together)) << uint32(4)
                    copy16(to + place + uint32(j * together * LINE), source)
                    source += step
                to += uint32(8 * LINE)
            return
        for _ in range(each // 8):
            for j in range(steps):
                place = to + ((within ^ uint32(j * together)) << uint32(4)) + uint32(j * together * LINE)
                inside = position < end
                copy16_or_zeros(place, source if inside else rows, uint32(CHUNK) if inside else uint32(0))
                source, position = source + step, position + uint32(together)
            to += uint32(8 * LINE)

    return copy


@cache
def fetcher(plan: WidePlan, values: bool) -> Any:
    """The device function that starts to fill a stage with a step's keys, or values: its full barrier."""
    copy, step, commit = tile_copier(plan, plan.width_v if values else plan.width), plan.positions, ptx.commit
    stride, full = (5, VALUES_FULL) if values else (2, KEYS_FULL)
    full, wait_for = full + plan.barriers_at, stage_waiter(plan, values)

    @inlined
    def fetch(base: Any, rows: Any, strides: Any, tile: Any, number: Any, end: Any) -> Any:
        stage, to = wait_for(base, number)
        copy(to, rows, strides[stride], uint32(tile * int32(step)), uint32(end))
        commit()
        return base + uint32(full) + stage * uint32(8)

    return fetch


@cache
def float_producer(plan: WidePlan) -> Any:
    """The producer of floats of 16 bits: a stage is full when copies of the next one have been started."""
    fetch_keys, fetch_values = fetcher(plan, False), fetcher(plan, True)
    wait_for_last, wait_for_all, arrive = ptx.wait_for_all_but(1), ptx.wait_for_all_but(0), barriers.arrive

    @inlined
    def fill(full: Any) -> None:
        wait_for_last()
        publish()
        arrive(full)

    @inlined
    def produce(
        at: Any, keys: Any, values: Any, strides: Any, first: Any, last: Any, end: Any, number: Any
    ) -> None:  # fmt: skip
        if first < last:
            full = fetch_keys(at, keys, strides, first, number, end)
            for tile in range(first, last):
                if tile + int32(1) < last:
                    next_full = fetch_keys(at, keys, strides, tile + int32(1), number + uint32(1), end)
                    fill(full)
                    full = next_full
                next_full = fetch_values(at, values, strides, tile, number, end)
                fill(full)
                full, number = next_full, number + uint32(1)
            wait_for_all()
            publish()
            arrive(full)

    return produce


# --- blocks -----------------------------------------------------------------------------------


@cache
def tile_decoder(plan: WidePlan, name: str, width: int) -> Any:
    """The device function ``decode(rows, to, rank)``: rows of blocks as a swizzled tile of halves.

    A thread reads some units before it writes the first: the assembler moves no load before a store.
    """
    threads, positions = plan.team, plan.positions
    length, columns, put16 = row_bytes(name, width), unit_columns(name), integers.put16
    units, (words, read, convert), two = width // columns, decoder(name), columns == 2 * EIGHT
    count = positions * units
    together = next(n for n in (4, 2, 1) if count % (threads * n) == 0)
    room = words * together

    @inlined
    def decode(rows: Any, to: Any, rank: Any) -> None:
        out, packed = cuda.local.array(8, uint32), cuda.local.array(room, uint32)
        for first in range(0, count, threads * together):
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // uint32(units)
                read(rows + row * uint32(length), at - row * uint32(units), packed, i)
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // uint32(units)
                unit = at - row * uint32(units)
                convert(packed, i, out)
                if two:
                    chunk = (unit >> uint32(1)) * uint32(4) + (unit & uint32(1))
                    put16(to + swizzled(row, chunk, positions), out[0], out[1], out[2], out[3])
                    put16(to + swizzled(row, chunk + uint32(2), positions), out[4], out[5], out[6], out[7])
                else:
                    put16(to + swizzled(row, unit, positions), out[0], out[1], out[2], out[3])

    return decode


@cache
def stage_producer(plan: WidePlan, values: bool) -> Any:
    """The device function that decodes a copied tile into the stage of its step."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    decode, wait_for, arrive = tile_decoder(plan, name, width), stage_waiter(plan, values), barriers.arrive
    full = plan.barriers_at + (VALUES_FULL if values else KEYS_FULL)

    @inlined
    def fill(base: Any, copied: Any, number: Any, rank: Any) -> None:
        stage, to = wait_for(base, number)
        decode(copied, to, rank)
        publish()
        arrive(base + uint32(full) + stage * uint32(8))

    return fill


@cache
def block_copier(plan: WidePlan) -> Any:
    """The device function that starts to copy item ``number``: K0, K1, V0, K2 …; of no step: nothing."""
    copy_keys, copy_values = copier(plan, plan.k, plan.width), copier(plan, plan.v, plan.width_v)
    step, size, at, commit = plan.positions, plan.copy_bytes, plan.copies_at, ptx.commit

    @inlined
    def copy(
        base: Any, keys: Any, values: Any, strides: Any, first: Any, last: Any, end: Any, number: Any,
        slot: Any, rank: Any,
    ) -> None:  # fmt: skip
        to, half = base + uint32(at) + slot * uint32(size), int32(number >> uint32(1))
        if number == uint32(0) or number & uint32(1) != uint32(0):
            tile = first + half + int32(number & uint32(1))
            if tile < last:
                copy_keys(to, keys, strides[2], uint32(tile * int32(step)), uint32(end), rank)
        elif first + half - int32(1) < last:
            tile = first + half - int32(1)
            copy_values(to, values, strides[5], uint32(tile * int32(step)), uint32(end), rank)
        commit()

    return copy


@cache
def block_producer(plan: WidePlan) -> Any:
    """The producer of blocks, some items ahead."""
    copy, fill_keys, fill_values = block_copier(plan), stage_producer(plan, False), stage_producer(plan, True)
    wait, meet = ptx.wait_for_all_but(COPIED - 2), barriers.named_barrier(2, plan.team)
    size, copies_at, consumers = plan.copy_bytes, plan.copies_at, LANES * plan.warps

    @inlined
    def produce(
        at: Any, keys: Any, values: Any, strides: Any, first: Any, last: Any, end: Any, before: Any
    ) -> None:  # fmt: skip
        rank, slot, free = uint32(cuda.threadIdx.x) - uint32(consumers), uint32(0), uint32(COPIED - 1)
        steps = uint32(max(int32(0), last - first))
        meet()  # nobody decodes tiles of the item before
        for i in range(COPIED - 1):
            copy(at, keys, values, strides, first, last, end, uint32(i), uint32(i), rank)
        number = uint32(0)
        while number <= uint32(2) * steps and steps > uint32(0):
            wait()
            meet()
            copy(at, keys, values, strides, first, last, end, number + uint32(COPIED - 1), free, rank)
            copied = at + uint32(copies_at) + slot * uint32(size)
            half, odd = number >> uint32(1), number & uint32(1)
            if number == uint32(0) or odd != uint32(0):
                if half + odd < steps:
                    fill_keys(at, copied, before + half + odd, rank)
            else:
                fill_values(at, copied, before + half - uint32(1), rank)
            free, slot = slot, slot + uint32(1) if slot + uint32(1) < uint32(COPIED) else uint32(0)
            number += uint32(1)

    return produce


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
