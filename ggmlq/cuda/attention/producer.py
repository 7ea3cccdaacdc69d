"""The producer of wide.py: a warpgroup that fills stages with tiles of keys and values.

Floats are copied to where they are multiplied. Blocks are copied as they are stored, some tiles ahead, and
decoded into their stage by the same threads. Tiles come in the order in which they are needed: the scores of
a step are made beside the values of the one before.

    K0  K1  V0  K2  V1  …
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, integers, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..intrinsics.warpgroup import publish
from .codes import EIGHT, decoder, unit_columns
from .plan import LANES, SIXTEEN, row_bytes
from .rows import CHUNK, copier
from .wide_plan import (
    COPIED,
    KEYS_FREE,
    KEYS_FULL,
    LINE,
    PRODUCERS,
    STAGES,
    VALUES_FREE,
    VALUES_FULL,
    WidePlan,
    swizzled,
)


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
