"""Attention of many rows on Hopper: wgmma, warp-specialised, two steps overlap.

A block has one or two warpgroups that multiply, the consumers, with 64 query rows each, and one that copies
and decodes, the producer. They wait for each other at barriers in shared memory: a stage is full, or free.

Blocks are persistent: each takes a tile of rows after the other, longest first. While its results are
written, and the queries of the next one are read, the keys of the next one are on their way.

Keys and values in blocks are decoded once for a tile of rows. Behind two consumers one warpgroup decodes
keys, another one values.

On an H200 ping-pong gains 1 to 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2, halves, hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...intrinsics.wgmma import publish, pv_starter, qk_starter, settler
from .kv_tiles import CHUNK, KINDS, UNIT_COLUMNS, copier, load_pair, tile_decoder, unit_columns
from .parameters import (
    PARAMETERS,
    Place,
    arguments_of,
    find_row_ranges,
    length_of,
    new_row_ranges,
    queries_of,
    work_at,
)
from .plan import (
    FLOAT16_TYPES,
    LANES,
    MAX_SHARED_HOPPER,
    MMA_ROWS,
    REGISTER_TYPES,
    USUAL_TYPES,
    WIDTHS,
    row_bytes,
)
from .softmax import LOG2_E, clearer, masked_softmax, o_rescaler, softmax_state, start_rows, unrolled
from .split_kv import rows_writer

HOPPER = (9, 0)

#     warps     0 … 3                4 … 7 (two groups)    the last four, or eight in two teams
#             ┌────────────────────┬─────────────────────┬────────────────────────────────────────┐
#             │ consumer, rows     │ consumer, rows      │ producer                               │
#             │ 0 … 63: Q in smem  │ 64 … 127            │ memory ─► stages (blocks: decoded)     │
#             └─────────▲──────────┴──────────▲──────────┴─────────────────┬──────────────────────┘
#                       └─────────────────────┴──── K: stage 0, 1 ◄────────┤   full: the producer's threads
#                                                   V: stage 0, 1 ◄────────┘   free: a lane of each warp
#
# Tiles come in the order in which they are needed, K0 K1 V0 K2 V1 …, as a consumer's steps overlap: it takes
# the exponentials of a step while values of the step before are still being multiplied.
#
#     tensor cores   QK0 │ QK1   PV0 │ QK2   PV1 │ QK3   PV2 │ …
#     exponentials       └── 0 ──┐   └── 1 ──┐   └── 2 ──┐
#                          it waits for QK1, not for PV0
#
# Two consumers ping-pong: each starts its products when the other has started its own, so one takes
# exponentials while the other multiplies.
#
#     consumer 0   [QK PV] softmax     [QK PV] softmax
#     consumer 1           [QK PV] softmax     [QK PV] softmax

# --- plan and shared memory -------------------------------------------------------------------
#
#     0                keys_at                values_at              copies_at               barriers_at
#     │ queries        │ K stage 0 │ stage 1  │ V stage 0 │ stage 1  │ tiles as stored × 3   │ barriers │
#
# All tiles begin at a multiple of 1024 bytes, where the swizzle of 128-byte rows begins anew.

GROUP_WARPS, PRODUCER_WARPS = 4, 4  # of a consumer warpgroup; of a producer's team
GROUP_ROWS = GROUP_WARPS * MMA_ROWS
STAGES, LINE = 2, 128  # of keys and of values; bytes of a swizzled row
MAX_EMPTY = 8  # tiles have rows of one head where at most this part of a head's rows is empty
COPIED_TILES = 3  # tiles of blocks that a team copies ahead
# Offsets of the barriers of both stages of keys, and of values: it is full, or free.
KEYS_FULL, KEYS_FREE, VALUES_FULL, VALUES_FREE, BARRIERS = 0, 16, 32, 48, 64
# Named barriers of the block; 0 is that of ``syncthreads``. The first consumer waits at PING_PONG for the
# second, which waits at the next one; so do the teams of a producer at PRODUCERS_MEET.
CONSUMERS_MEET, PING_PONG, PRODUCERS_MEET = 1, 2, 4


@dataclass(frozen=True)
class HopperPlan:
    """The block of 64 rows for each warpgroup that multiplies, and of one that copies and decodes."""

    k: str
    v: str
    width: int  # columns of a key, a multiple of 64
    width_v: int
    groups: int = 2
    by_rows, v_in_k = True, False
    swap_ab, score_stride = False, 1

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {self.width}/{self.width_v}, {self.groups} warpgroups by wgmma"

    @property
    def warps(self) -> int:
        """Warps of a block that multiply."""
        return GROUP_WARPS * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's last."""
        return LANES * self.warps + self.teams * self.team_threads

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return MMA_ROWS * self.warps

    def tiles(self, queries: int, group: int, causal: bool) -> int:
        """Work tiles of a KV head, as :func:`tiles_of_head` counts them."""
        of_head = -(-queries // self.rows)
        fits = causal and (of_head * self.rows - queries) * MAX_EMPTY <= queries
        return of_head * group if fits else -(-queries * group // self.rows)

    @property
    def positions(self) -> int:
        """Positions of a step."""
        wide = self.groups > 1 and self.k in FLOAT16_TYPES
        return 128 if wide and self.width <= 192 and self.width_v <= 128 else 64

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        return 2 if self.groups == 1 and self.width <= 128 and self.width_v <= 128 else 1

    resident = blocks

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that multiplies, and of one that copies; (0, 0): as many as at the start."""
        # of 65,536 on a multiprocessor: 256 · 224 + 128 · 56 = 64,512; 2 · (128 · 200 + 128 · 56) = 65,536;
        # 256 · 168 + 256 · 88 = 65,536
        if self.groups > 1:
            return (224, 56) if self.k in FLOAT16_TYPES else (168, 88)
        return (200, 56) if self.blocks > 1 else (0, 0)

    @property
    def teams(self) -> int:
        """Teams of a producer: two consumers would wait for one that decodes blocks."""
        return 1 if self.k in FLOAT16_TYPES else self.groups

    @property
    def team_threads(self) -> int:
        """Threads that copy and decode together."""
        return LANES * PRODUCER_WARPS

    @property
    def team_positions(self) -> int:
        """Positions of a step that a team copies, and that each consumer warp scores: all."""
        return self.positions

    @property
    def score_quads(self) -> int:
        """Scores of a lane, four at a time."""
        return self.positions // 8

    @property
    def o_count(self) -> int:
        """Sums of p times values of a lane."""
        return self.width_v // 2

    def kind(self, name: str) -> str:
        """The floats of a type's tiles."""
        return name if name in FLOAT16_TYPES else "f16"

    def tile(self, width: int) -> int:
        """Bytes of a tile of keys or values."""
        return 2 * self.positions * width

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys, behind the queries."""
        return 2 * self.rows * self.width

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.tile(self.width)

    @property
    def copies_at(self) -> int:
        """Offset of tiles of blocks, as they are stored."""
        return self.values_at + STAGES * self.tile(self.width_v)

    @property
    def copy_bytes(self) -> int:
        """Bytes of a tile of blocks, of keys or values."""
        rows = ((self.k, self.width), (self.v, self.width_v))
        sizes = [
            self.positions * row_bytes(name, width) + 16 for name, width in rows if name not in FLOAT16_TYPES
        ]
        return -(-max(sizes, default=0) // 128) * 128

    @property
    def barriers_at(self) -> int:
        """Offset of the barriers."""
        return self.copies_at + self.teams * COPIED_TILES * self.copy_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.barriers_at + BARRIERS


def hopper_plan_of(k: str, v: str, width: int, width_v: int, rows: int) -> HopperPlan:
    """The plan for so many rows of a KV head.

    With blocks, two warpgroups lack shared memory for wide keys, and registers for sums of wide values.
    """
    two = rows > GROUP_ROWS and (k in FLOAT16_TYPES or max(width, width_v) <= 128)
    return HopperPlan(k, v, width, width_v, 1 + two)


def fits_hopper(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths.

    Both are floats, or blocks of one type: decoders of two take more registers than a warp that copies has.
    """
    types_fit = v in FLOAT16_TYPES if k in FLOAT16_TYPES else k == v in REGISTER_TYPES
    fits = width in WIDTHS and width_v in WIDTHS and types_fit
    return fits and hopper_plan_of(k, v, width, width_v, GROUP_ROWS + 1).shared_bytes <= MAX_SHARED_HOPPER


def hopper_plans() -> Iterator[tuple[HopperPlan]]:
    """Plans of the usual widths and types, of one warpgroup and of two."""
    for (k, v), width in product(USUAL_TYPES, WIDTHS):
        if fits_hopper(k, v, width, width):
            plans = (hopper_plan_of(k, v, width, width, rows) for rows in (GROUP_ROWS, GROUP_ROWS + 1))
            yield from ((plan,) for plan in dict.fromkeys(plans))


@inlined
def swizzled(row: Any, chunk: Any, rows: Any) -> Any:
    """The offset of 16 bytes of a tile: parts of 64 columns, chunks of a row exchanged."""
    part, within = chunk >> 3, chunk & 7
    # chunk c of row r lies at c ^ (r % 8), as the descriptors of wgmma say
    return (part * rows + row) * LINE + ((within ^ (row & 7)) << 4)


@cache
def barrier_maker(plan: HopperPlan) -> Any:
    """The device function by which one thread makes the barriers of stages."""
    # Arrivals of a phase: every thread of the producer, for its own copies; a lane of each consumer warp.
    full, free, at = plan.team_threads, plan.warps, plan.barriers_at

    @inlined
    def make(base: Any) -> None:
        if cuda.threadIdx.x == 0:
            for stage in range(STAGES):
                place = base + at + uint32(8 * stage)
                hopper.init_barrier(place + KEYS_FULL, uint32(full))
                hopper.init_barrier(place + KEYS_FREE, uint32(free))
                hopper.init_barrier(place + VALUES_FULL, uint32(full))
                hopper.init_barrier(place + VALUES_FREE, uint32(free))
            hopper.publish_barriers()

    return make


# --- tile scheduler ---------------------------------------------------------------------------


@cache
def tiles_of_head(plan: HopperPlan) -> Any:
    """The device function for the tiles of a head, where no tile has rows of two heads; else 0.

    Under a causal mask a tile with the last rows of one head and the first of another goes over all positions
    for both.
    """
    rows = plan.rows

    @inlined
    def count(sizes: Any) -> Any:
        tiles = (sizes.queries + (rows - 1)) // rows
        fits = sizes.causal != 0 and (tiles * rows - sizes.queries) * MAX_EMPTY <= sizes.queries
        return tiles if fits else uint32(0)

    return count


@cache
def tile_taker(plan: HopperPlan) -> Any:
    """The device function for a work tile by its number; producer and consumers ask for the same ones.

    Those with most positions come first: where no tile has rows of two heads, the last queries of all heads.
    """
    rows, positions, find_tiles_of_head = plan.rows, plan.positions, tiles_of_head(plan)

    @inlined
    def take(number: Any, arguments: Any, units: Any) -> Any:
        sizes = arguments.sizes
        per_head, count = find_tiles_of_head(sizes), uint32(rows)
        if per_head > 0:
            heads = units * sizes.group
            from_last = number // heads
            head = number - from_last * heads
            unit = head // sizes.group
            first = (per_head - 1 - from_last) * rows
            count = min(count, sizes.queries - first)
            first += (head - unit * sizes.group) * sizes.queries
        else:
            from_last = number // units
            unit = number - from_last * units
            tiles = (sizes.queries * sizes.group + (rows - 1)) // rows
            first = (tiles - 1 - from_last) * rows
        place = Place(unit, units, first, length_of(arguments.addresses, sizes, unit))
        return work_at(place, arguments, count, positions)

    return take


@inlined
def next_tile(number: Any) -> Any:
    """The work tile that a block takes next: one of each round of all blocks, which goes there and back.

    So the block with the longest tile of a round gets the shortest one of the next.
    """
    blocks = uint32(cuda.gridDim.y)
    round_number = number // blocks
    return (round_number + 2) * blocks - 1 - (number - round_number * blocks)


# --- producer ---------------------------------------------------------------------------------
#
# Floats are copied to where they are multiplied. Blocks are copied as they are stored, some tiles ahead, and
# decoded into their stage by the same threads.
#
# Steps are numbered from work tile to work tile, n = 0, 1, 2 …: step n has stage n & 1, and n >> 1 & 1 is the
# parity of the phase of its barriers. Who fills a stage waits for the phase of the other parity: at the first
# time that one counts as ended.


def producer(plan: HopperPlan) -> Any:
    """The device function ``produce(at, work, strides, number)`` of a work tile.

    ``number``: of its first step.
    """
    return float_producer(plan) if plan.k in FLOAT16_TYPES else block_producer(plan)


@cache
def stage_waiter(plan: HopperPlan, values: bool) -> Any:
    """The device function that waits until a step's stage is free: the stage, and the address of its tile."""
    at, tile = (plan.values_at, plan.tile(plan.width_v)) if values else (plan.keys_at, plan.tile(plan.width))
    free, wait = plan.barriers_at + (VALUES_FREE if values else KEYS_FREE), hopper.wait

    @inlined
    def wait_for(base: Any, number: Any) -> Any:
        stage, parity = number & 1, number >> 1 & 1
        # Consumers have read the step two before, which this one overwrites.
        wait(base + free + stage * 8, parity ^ 1)
        return stage, base + at + stage * tile

    return wait_for


@cache
def tile_copier(plan: HopperPlan, width: int) -> Any:
    """The device function ``copy(to, rows, stride, first, end)``: positions ``first`` … as a swizzled tile.

    A warp copies a part of them, some rows at once, eight in a few steps. Rows of its own copies are j more
    than its first: their chunk is exchanged by an exclusive or with a constant.
    """
    positions, each, per_row = plan.positions, plan.positions // PRODUCER_WARPS, 2 * width // CHUNK
    together = LANES // per_row  # rows that the warp copies at once
    steps, copy16, copy16_or_zeros, consumers = 8 // together, ptx.copy16, ptx.copy16_or_zeros, plan.warps

    @inlined
    def copy(to: Any, rows: Any, stride: Any, first: Any, end: Any) -> None:
        warp, lane = warp_and_lane()
        row, chunk = lane // per_row, lane % per_row
        part, within = chunk >> 3, (chunk & 7) ^ row
        row += (warp - consumers) * each
        to += (part * positions + row) * LINE
        position, source = first + row, rows + uint64(first + row) * stride + uint64(chunk * CHUNK)
        step = together * stride
        if first + positions <= end:  # all positions exist: nothing to compare for each 16 bytes
            for _ in range(each // 8):
                for j in range(steps):
                    place = (within ^ uint32(j * together)) << 4
                    copy16(to + place + uint32(j * together * LINE), source)
                    source += step
                to += 8 * LINE
            return
        for _ in range(each // 8):
            for j in range(steps):
                place = to + ((within ^ uint32(j * together)) << 4) + uint32(j * together * LINE)
                inside = position < end
                copy16_or_zeros(place, source if inside else rows, CHUNK if inside else 0)
                source, position = source + step, position + together
            to += 8 * LINE

    return copy


@cache
def tile_fetcher(plan: HopperPlan, values: bool) -> Any:
    """The device function that starts to fill a stage with a step's keys, or values: its full barrier."""
    copy = tile_copier(plan, plan.width_v if values else plan.width)
    positions, commit, wait_for = plan.positions, ptx.commit, stage_waiter(plan, values)
    full = plan.barriers_at + (VALUES_FULL if values else KEYS_FULL)

    @inlined
    def fetch(base: Any, rows: Any, stride: Any, step: Any, number: Any, end: Any) -> Any:
        stage, to = wait_for(base, number)
        copy(to, rows, stride, uint32(step * int32(positions)), uint32(end))
        commit()
        return base + full + stage * 8

    return fetch


@cache
def float_producer(plan: HopperPlan) -> Any:
    """The producer of floats of 16 bits: a stage is full when copies of the next one have been started."""
    fetch_keys, fetch_values = tile_fetcher(plan, False), tile_fetcher(plan, True)
    wait_for_last, wait_for_all, arrive = ptx.wait_for_all_but(1), ptx.wait_for_all_but(0), hopper.arrive

    @inlined
    def fill(full: Any) -> None:
        wait_for_last()  # all copies of this thread but the newest group, which is the next tile
        # wgmma reads shared memory by the async proxy: without this fence it may read what was there before.
        publish()
        arrive(full)

    @inlined
    def produce(at: Any, work: Any, strides: Any, number: Any) -> None:
        first, last, end = work.kv.first_step, work.kv.end_step, work.kv.end
        if first < last:
            full = fetch_keys(at, work.keys, strides.k_position, first, number, end)
            for step in range(first, last):
                # K of the next step before V of this one: consumers ask for them in that order
                if step + int32(1) < last:
                    next_full = fetch_keys(
                        at, work.keys, strides.k_position, step + int32(1), number + 1, end
                    )
                    fill(full)
                    full = next_full
                next_full = fetch_values(at, work.values, strides.v_position, step, number, end)
                fill(full)
                full, number = next_full, number + 1
            wait_for_all()  # nothing is copied behind the last tile
            publish()
            arrive(full)

    return produce


@cache
def swizzled_putter(name: str, positions: int) -> Any:
    """The device function that puts a decoded unit into a swizzled tile."""
    put16, two = ptx.put16, unit_columns(name) == 2 * UNIT_COLUMNS

    @inlined
    def put(to: Any, row: Any, unit: Any, out: Any) -> None:
        if two:
            chunk = (unit >> 1) * 4 + (unit & 1)
            put16(to + swizzled(row, chunk, positions), out[0], out[1], out[2], out[3])
            put16(to + swizzled(row, chunk + 2, positions), out[4], out[5], out[6], out[7])
        else:
            put16(to + swizzled(row, unit, positions), out[0], out[1], out[2], out[3])

    return put


@cache
def stage_decoder(plan: HopperPlan, values: bool) -> Any:
    """The device function that decodes a copied tile into the stage of its step."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    put = swizzled_putter(name, plan.positions)
    decode = tile_decoder(plan.team_threads, plan.positions, name, width, put)
    wait_for, arrive = stage_waiter(plan, values), hopper.arrive
    full = plan.barriers_at + (VALUES_FULL if values else KEYS_FULL)

    @inlined
    def fill(base: Any, copied: Any, number: Any, rank: Any) -> None:
        stage, to = wait_for(base, number)
        decode(copied, to, rank)
        publish()  # as above: decoded halves become visible to wgmma
        arrive(base + full + stage * 8)

    return fill


# The tiles of a work tile have numbers: 2 n is that of keys of step n, 2 n + 3 that of its values. One team
# takes all of them, K0 K1 V0 K2 V1 …, and leaves out 1; of two the first takes keys, the second values.


@cache
def later_number(plan: HopperPlan) -> Any:
    """The device function for the number of a team's tile so many tiles after another one of its own."""
    alone, teams = plan.teams == 1, plan.teams

    @inlined
    def later(number: Any, tiles: Any) -> Any:
        number += uint32(tiles * teams)
        if alone and number == tiles:
            number += 1
        return number

    return later


@cache
def block_copier(plan: HopperPlan) -> Any:
    """The device function that starts to copy a tile by its number; of no step: nothing."""
    copy_keys, copy_values = copier(plan, plan.k, plan.width), copier(plan, plan.v, plan.width_v)
    positions, commit = plan.positions, ptx.commit

    @inlined
    def copy(to: Any, work: Any, strides: Any, number: Any, rank: Any) -> None:
        kv = work.kv
        step = kv.first_step + int32(number >> 1)
        if number & 1 == 0:
            if step < kv.end_step:
                first = uint32(step * int32(positions))
                copy_keys(to, work.keys, strides.k_position, first, uint32(kv.end), rank)
        elif kv.first_step < step <= kv.end_step:
            first = uint32((step - int32(1)) * int32(positions))
            copy_values(to, work.values, strides.v_position, first, uint32(kv.end), rank)
        commit()  # also where nothing was copied: each thread counts groups

    return copy


@cache
def block_producer(plan: HopperPlan) -> Any:
    """The producer of blocks: tiles as they are stored come some ahead, in a ring; then they are decoded."""
    copy, fill_keys, fill_values = block_copier(plan), stage_decoder(plan, False), stage_decoder(plan, True)
    wait, meet = ptx.wait_for_all_but(COPIED_TILES - 2), hopper.ping_pong(plan.team_threads)[0]
    size, copies_at, consumers = plan.copy_bytes, plan.copies_at, LANES * plan.warps
    threads, later, alone = plan.team_threads, later_number(plan), plan.teams == 1

    @inlined
    def produce(at: Any, work: Any, strides: Any, before: Any) -> None:
        rank = uint32(uint32(cuda.threadIdx.x) - consumers)
        # Of one team all below are constants: by a division they took registers, and others spilled.
        team = uint32(0) if alone else uint32(rank // threads)
        rank, barrier = uint32(rank - uint32(team * threads)), uint32(PRODUCERS_MEET + team)
        ring = uint32(at + copies_at + uint32(team * (COPIED_TILES * size)))
        steps = uint32(max(int32(0), work.kv.end_step - work.kv.first_step))
        place, free, number = uint32(0), uint32(COPIED_TILES - 1), team
        meet(barrier)  # nobody decodes tiles of the work tile before, over which the first copies go
        copy(ring, work, strides, number, rank)
        for i in range(1, COPIED_TILES - 1):
            copy(ring + i * size, work, strides, later(number, i), rank)
        while number < 2 * steps + 2:
            wait()  # this thread's copies of the tile have arrived
            meet(barrier)  # … and its team's; and all have decoded the tile whose place is filled next
            copy(ring + free * size, work, strides, later(number, COPIED_TILES - 1), rank)
            copied, half = ring + place * size, number >> 1
            if number & 1 == 0:
                if half < steps:
                    fill_keys(at, copied, before + half, rank)
            elif half > 0:
                fill_values(at, copied, before + half - 1, rank)
            free = place
            place = place + 1 if place + 1 < COPIED_TILES else 0
            number = later(number, 1)

    return produce


# --- consumer ---------------------------------------------------------------------------------


@cache
def query_loader(plan: HopperPlan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a swizzled tile of 16-bit floats.

    Those of the tile's floats are copied, all at the same time; others are converted, pair after pair.
    """
    threads, rows_count, pairs, chunks = LANES * plan.warps, plan.rows, plan.width // 2, plan.width // 8
    copy, wait = ptx.copy16_or_zeros, ptx.wait_for_all_but(0)
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed
    same = KINDS["bfloat16" if plan.k == "bf16" else "float16"]

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        if kind == same:
            for i in range(rows_count * chunks // threads):
                number = uint32(cuda.threadIdx.x) + uint32(i * threads)
                row, chunk = number // chunks, number % chunks
                inside = row < count
                source = rows + number * CHUNK if inside else rows
                copy(to + swizzled(row, chunk, rows_count), source, CHUNK if inside else 0)
            ptx.commit()
            wait()
            return
        for i in range(rows_count * pairs // threads):
            number = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row, pair = number // pairs, number % pairs
            word = uint32(0)
            if row < count:
                low, high = load_pair(rows, row * pairs + pair, kind)
                word = narrowed(low, high)
            ptx.put4(to + swizzled(row, pair >> 2, rows_count) + (pair & 3) * 4, word)

    return load


def p_packer(plan: HopperPlan) -> Any:
    """The device function that rounds p to pairs of 16 bits: A of the second product, in registers."""
    narrowed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed

    def quad(j: Any, s: Any, p: Any) -> None:
        for i in range(4):
            p[4 * j + i] = narrowed(s[8 * j + 2 * i], s[8 * j + 2 * i + 1])

    return unrolled(plan.team_positions // 16, quad)


class Gemms(NamedTuple):
    """Device functions that start the products of a step, once its stage is full, and wait for them.

    Sums that were waited for leave their stage free.
    """

    start_qk: Any  # (s, base, warp, number): scores of a step
    start_pv: Any  # (o, p, base, number): p of a step times its values
    wait_qk: Any  # (s, base, number), while values are still being multiplied
    wait_qk_alone: Any
    wait_pv: Any  # (o, base, number)


@cache
def gemms(plan: HopperPlan) -> Gemms:
    """The products of a plan."""
    positions, width, width_v = plan.positions, plan.width, plan.width_v
    qk_gemm, pv_gemm = (
        qk_starter(positions, width, plan.kind(plan.k)), pv_starter(positions, width_v, plan.kind(plan.v))
    )  # fmt: skip
    keys_at, values_at, tile_k, tile_v = plan.keys_at, plan.values_at, plan.tile(width), plan.tile(width_v)
    group_rows, part_rows = 64 * LINE, plan.rows * LINE  # bytes in a part: of a warpgroup, of all
    wait, arrive, barriers_at = hopper.wait, hopper.arrive, plan.barriers_at

    @inlined
    def until_full(base: Any, full: Any, number: Any) -> Any:
        stage = number & 1
        wait(base + barriers_at + full + stage * 8, number >> 1 & 1)
        return stage

    @inlined
    def leave(base: Any, free: Any, number: Any) -> None:
        # One lane for its warp: the wait before was of all lanes together (``.sync.aligned``).
        if warp_and_lane()[1] == 0:
            arrive(base + barriers_at + free + (number & 1) * 8)

    @inlined
    def start_qk(s: Any, base: Any, warp: Any, number: Any) -> None:
        keys = base + keys_at + until_full(base, KEYS_FULL, number) * tile_k
        qk_gemm(s, base + (warp >> 2) * group_rows, keys, uint32(part_rows))

    @inlined
    def start_pv(o: Any, p: Any, base: Any, number: Any) -> None:
        pv_gemm(o, p, base + values_at + until_full(base, VALUES_FULL, number) * tile_v)

    def wait_and_leave(wait_for_sums: Any, free: int) -> Any:
        @inlined
        def waited(sums: Any, base: Any, number: Any) -> None:
            wait_for_sums(sums)
            leave(base, free, number)

        return waited

    scores = positions // 2
    return Gemms(
        start_qk=start_qk,
        start_pv=start_pv,
        wait_qk=wait_and_leave(settler(scores, 1), KEYS_FREE),  # but one group: p · v of the step before
        wait_qk_alone=wait_and_leave(settler(scores, 0), KEYS_FREE),
        wait_pv=wait_and_leave(settler(width_v // 2, 0), VALUES_FREE),
    )


@cache
def make_mainloop(plan: HopperPlan) -> Any:
    """The device function that goes over the steps of a work tile; there is at least one.

    ``number``: of the first step. The scores of a step and the sums of the one before are made together.
    Exponentials of the former are taken while the latter are still being made.
    """
    gemm, softmax, rescale_o, pack_p = gemms(plan), masked_softmax(plan), o_rescaler(plan), p_packer(plan)
    start_qk, start_pv, wait_qk, wait_qk_alone, wait_pv = (
        gemm.start_qk, gemm.start_pv, gemm.wait_qk, gemm.wait_qk_alone, gemm.wait_pv
    )  # fmt: skip
    positions, ping_pong = plan.positions, plan.groups > 1
    s_count, p_count = plan.team_positions // 2, plan.team_positions // 4
    wait_for_other, let_other_start = hopper.ping_pong(LANES * plan.warps)

    @inlined
    def mainloop(
        o: Any, state: Any, at: Any, warp: Any, kv: Any, column: Any, seen: Any, factor: Any, number: Any
    ) -> None:  # fmt: skip
        s, p = cuda.local.array(s_count, float32), cuda.local.array(p_count, uint32)
        # the first scores: no values to overlap with
        start_qk(s, at, warp, number)
        wait_qk_alone(s, at, number)
        softmax(s, kv.first_step * int32(positions), column, kv, seen, factor, state)
        pack_p(s, p)
        own = PING_PONG + (warp >> 2)
        others = 2 * PING_PONG + 1 - own
        for step in range(kv.first_step + int32(1), kv.end_step):
            if ping_pong:
                wait_for_other(own)  # until the other consumer has started its products
            start_qk(s, at, warp, number + 1)
            start_pv(o, p, at, number)
            if ping_pong:
                let_other_start(others)
            wait_qk(s, at, number + 1)  # p · v goes on
            # Exponentials beside p · v. o is not touched here, though its scale is known now.
            grown = softmax(s, step * int32(positions), column, kv, seen, factor, state)
            # Never true; but it keeps the assembler from moving the wait for o in front of the exponentials,
            # where it would end the overlap.
            if ptx.add(state.row_sum[0], state.row_sum[1]) < float32(0):
                publish()
            wait_pv(o, at, number)
            if grown:  # only now: o was being added to
                rescale_o(o, state)
            pack_p(s, p)  # likewise p was being read
            number += 1
        # the last values: no scores to overlap with
        start_pv(o, p, at, number)
        wait_pv(o, at, number)

    return mainloop


@cache
def consumer(plan: HopperPlan) -> Any:
    """The device function of a warpgroup that multiplies: all work tiles of its block."""
    width, o_count, ping_pong = plan.width, plan.width_v // 2, plan.groups > 1
    meet = hopper.named_barrier(CONSUMERS_MEET, LANES * plan.warps)
    let_other_start = hopper.ping_pong(LANES * plan.warps)[1]
    take, load_queries, mainloop = tile_taker(plan), query_loader(plan), make_mainloop(plan)
    write, clear = rows_writer(plan), clearer(o_count // 8)

    @inlined
    def consume(at: Any, arguments: Any, factor: Any, units: Any, tiles: Any) -> None:
        (warp, lane), number, tile = warp_and_lane(), uint32(0), uint32(cuda.blockIdx.y)
        g, t = g_and_t(lane)
        seen, state = new_row_ranges(), softmax_state()
        o, column = cuda.local.array(o_count, float32), int32(t) * int32(2)
        if ping_pong and warp >= uint32(GROUP_WARPS):
            let_other_start(uint32(PING_PONG))  # the first warpgroup is the first to start
        while tile < tiles:
            work = take(tile, arguments, units)
            kv = work.kv
            meet()  # nobody multiplies with the queries of the work tile before
            load_queries(at, queries_of(arguments, work.place, width), arguments.sizes.q_kind, kv.rows)
            row = work.place.first_row + warp * MMA_ROWS + g
            find_row_ranges(seen, row, 8, arguments.sizes, work.place.length)
            clear(o)
            start_rows(state)
            publish()  # queries become visible to wgmma: each thread for what it has written
            meet()  # … and those of all are there
            if kv.first_step < kv.end_step:
                mainloop(o, state, at, warp, kv, column, seen, factor, number)
                number += uint32(kv.end_step - kv.first_step)
            write(o, state, work, arguments)
            tile = next_tile(tile)

    return consume


# --- kernel -----------------------------------------------------------------------------------


@family(hopper_plans)
def kernel(plan: HopperPlan) -> Kernel:
    """The kernel: block (split of the positions, number), which takes work tiles beside the other blocks."""
    produce, consume, take, make_barriers, rows, find_tiles_of_head = (
        producer(plan), consumer(plan), tile_taker(plan), barrier_maker(plan), plan.rows, tiles_of_head(plan)
    )  # fmt: skip
    (most, least), consumers = plan.registers, plan.warps
    give_registers, take_registers = hopper.registers("dec", least), hopper.registers("inc", most)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, units: Any) -> None:
        at = (ptx.shared_base() + 1023) & 0xFFFFFC00  # the swizzle needs tiles at multiples of 1024
        make_barriers(at)
        hopper.take_turn()  # barriers are made while the kernel before still runs
        arguments = arguments_of(addresses, strides, sizes)
        tiles = find_tiles_of_head(arguments.sizes) * arguments.sizes.group * units
        if tiles == 0:
            tiles = (arguments.sizes.queries * arguments.sizes.group + (rows - 1)) // rows * units
        cuda.syncthreads()  # barriers are there: nobody waits at one, or arrives, before it is made
        if warp_and_lane()[0] >= consumers:
            if least:
                give_registers()  # the consumers' sums take them
            tile, number = uint32(cuda.blockIdx.y), uint32(0)
            while tile < tiles:
                work = take(tile, arguments, units)
                kv = work.kv
                # Both sides count steps alike, and so agree on stages and phases without a word.
                produce(at, work, arguments.strides, number)
                number += uint32(max(int32(0), kv.end_step - kv.first_step))
                tile = next_tile(tile)
            return
        if most:
            take_registers()
        consume(at, arguments, ptx.mul(ptx.float_of(scale), LOG2_E), units, tiles)

    return Kernel(
        f"attention of {plan}", attend, *PARAMETERS, threads=plan.threads,
        blocks=plan.blocks, shared=plan.shared_bytes, least=HOPPER, exact=True, early=True, lto=True,
    )  # fmt: skip
