"""Rows of keys and values on their way into shared memory: copied as they are, then decoded if need be."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, codes8, halves, integers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32, uint64
from .codes import EIGHT, decoder, pair_loader, pair_of_words, unit_columns
from .plan import LANES, SIXTEEN, Plan, row_bytes
from .unrolled import unrolled

CHUNK = 16  # bytes of a copy


@cache
def copier(plan: Plan, name: str, width: int) -> Any:
    """The device function ``copy(to, rows, apart, first, end, rank)``: positions ``first`` … of a step.

    ``rank``: of a thread in its team.

    ``rows``: the address of position 0, ``apart`` bytes from position to position; positions from ``end``
    on become zeros. Rows of blocks lie without gaps.
    """
    threads, positions, copy16 = plan.team, plan.span, bf16x2.copy16_or_zeros
    pitch, length = plan.pitch(width) if name in SIXTEEN else 0, row_bytes(name, width)
    size, chunks = positions * length, -(-positions * length // CHUNK)

    @inlined
    def copy_span(to: Any, rows: Any, apart: Any, first: Any, end: Any, rank: Any) -> None:
        there = (int32(end) - int32(first)) * int32(length)  # bytes up to the last position
        source = rows + uint64(first) * uint64(length)
        if there >= int32(size):
            source, to = source + uint64(rank * uint32(CHUNK)), uint32(to + rank * uint32(CHUNK))
            for i in range(-(-chunks // threads)):
                if (i + 1) * threads <= chunks or rank < uint32(chunks - i * threads):
                    start = i * CHUNK * threads
                    copy16(uint32(to + uint32(start)), source + uint64(start), uint32(CHUNK))
            return
        for i in range(-(-chunks // threads)):
            at = int32(rank) * int32(CHUNK) + int32(i * CHUNK * threads)
            if at < int32(size):
                left = max(int32(0), min(int32(CHUNK), there - at))
                start = uint64(at) if left > int32(0) else uint64(0)
                copy16(uint32(to + uint32(at)), source + start, uint32(left))

    per_row = 2 * width // CHUNK

    @inlined
    def copy_rows(to: Any, rows: Any, apart: Any, first: Any, end: Any, rank: Any) -> None:
        for i in range(-(-positions * per_row // threads)):
            chunk = rank + uint32(i * threads)
            row = chunk // uint32(per_row)
            within = (chunk - row * uint32(per_row)) * uint32(CHUNK)
            if row < uint32(positions):
                inside = first + row < end
                position = first + row if inside else uint32(0)
                source = rows + uint64(position) * apart + uint64(within)
                copy16(to + row * uint32(pitch) + within, source, uint32(CHUNK) if inside else uint32(0))

    return copy_rows if name in SIXTEEN else copy_span


@cache
def prefetcher(plan: Plan, name: str, width: int) -> Any:
    """The device function ``prefetch(rows, apart, first, end, lane)``: a warp's positions, if all exist."""
    positions, length, line = plan.span, row_bytes(name, width), 128
    spread, lines = name in SIXTEEN, -(-length // line)
    count = positions * lines if spread else -(-positions * length // line)
    start = bf16x2.prefetch

    @inlined
    def prefetch(rows: Any, apart: Any, first: Any, end: Any, lane: Any) -> None:
        if first + uint32(positions) > end:
            return
        for i in range(0, count, LANES):
            number = lane + uint32(i)
            if number < uint32(count):
                if spread:
                    row = number // uint32(lines)
                    within = (number - row * uint32(lines)) * uint32(line)
                    start(rows + uint64(first + row) * apart + uint64(within))
                else:
                    start(rows + uint64(first) * uint64(length) + uint64(number * uint32(line)))

    return prefetch


@cache
def tile_decoder(plan: Plan, name: str, width: int) -> Any:
    """The device function ``decode(rows, tile, rank)``: the rows of a step as a tile of halves.

    A thread reads some units before it writes the first: the assembler moves no load before a store.
    """
    threads, positions, pitch = plan.team, plan.span, plan.pitch(width)
    length, units, put16 = row_bytes(name, width), width // unit_columns(name), integers.put16
    (words, read, convert), two = decoder(name), unit_columns(name) == 2 * EIGHT
    count = positions * units
    together = next(n for n in (4, 2, 1) if count % (threads * n) == 0 or n == 1)
    room, whole = words * together, count % threads == 0

    @inlined
    def decode(rows: Any, tile: Any, rank: Any) -> None:
        out, packed = cuda.local.array(8, uint32), cuda.local.array(room, uint32)
        for first in range(0, count, threads * together):
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // uint32(units)
                if whole or row < uint32(positions):
                    read(rows + row * uint32(length), at - row * uint32(units), packed, i)
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // uint32(units)
                unit = at - row * uint32(units)
                if whole or row < uint32(positions):
                    convert(packed, i, out)
                    to = tile + row * uint32(pitch)
                    if two:
                        to += (unit >> uint32(1)) * uint32(64) + (unit & uint32(1)) * uint32(16)
                        put16(to, out[0], out[1], out[2], out[3])
                        put16(to + uint32(32), out[4], out[5], out[6], out[7])
                    else:
                        put16(to + unit * uint32(16), out[0], out[1], out[2], out[3])

    return decode


@cache
def query_loader(plan: Plan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a tile of 16-bit floats.

    ``kind``: 0 for float32, 1 for float16, 2 for bfloat16. Rows from ``count`` on become zeros.
    """
    threads, rows_count, pairs, pitch = plan.threads, plan.rows, plan.width // 2, plan.pitch(plan.width)
    load_pair, put4 = pair_loader(), halves.put4
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        for i in range(-(-rows_count * pairs // threads)):
            at = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row = at // uint32(pairs)
            pair = at - row * uint32(pairs)
            if row < uint32(rows_count):
                word = uint32(0)
                if row < count:
                    low, high = load_pair(rows, uint64(row) * uint64(pairs) + uint64(pair), kind)
                    word = narrowed(low, high)
                put4(to + row * uint32(pitch) + pair * uint32(4), word)

    return load


def words_of_queries(plan: Plan) -> int:
    """Words of queries that a thread reads: two for two columns, whatever floats they are."""
    return 2 * -(-plan.rows * plan.width // 2 // plan.threads)


@cache
def query_reader(plan: Plan) -> Any:
    """The device function ``read(rows, kind, count, raw)``: a thread's pairs of queries, two words each.

    It waits for none of them. Queries are asked of memory before keys and values: behind those they would
    come last, and all products wait for them.
    """
    threads, pairs, load8, load4 = plan.threads, plan.width // 2, bf16x2.load8, codes8.load4

    def one(i: Any, rows: Any, kind: Any, count: Any, raw: Any) -> None:
        number = uint32(cuda.threadIdx.x) + uint32(i * threads)
        raw[2 * i], raw[2 * i + 1] = uint32(0), uint32(0)
        if number < count * uint32(pairs):
            if kind == uint32(0):
                two = load8(rows + uint64(number) * uint64(8))
                raw[2 * i], raw[2 * i + 1] = uint32(two[0]), uint32(two[1])
            else:
                raw[2 * i] = uint32(load4(rows + uint64(number) * uint64(4)))

    read_all = unrolled(words_of_queries(plan) // 2, one)

    @inlined
    def read(rows: Any, kind: Any, count: Any, raw: Any) -> None:
        read_all(0, rows, kind, count, raw)

    return read


@cache
def query_putter(plan: Plan) -> Any:
    """The device function ``put(to, kind, raw)``: what ``query_reader`` read, as a tile of 16-bit floats."""
    threads, rows_count, pairs, pitch = plan.threads, plan.rows, plan.width // 2, plan.pitch(plan.width)
    floats_of, put4 = pair_of_words(), halves.put4
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    def one(i: Any, to: Any, kind: Any, raw: Any) -> None:
        at = uint32(cuda.threadIdx.x) + uint32(i * threads)
        row = at // uint32(pairs)
        pair = at - row * uint32(pairs)
        if row < uint32(rows_count):
            low, high = floats_of(raw[2 * i], raw[2 * i + 1], kind)
            put4(to + row * uint32(pitch) + pair * uint32(4), narrowed(low, high))

    put_all = unrolled(words_of_queries(plan) // 2, one)

    @inlined
    def put(to: Any, kind: Any, raw: Any) -> None:
        put_all(0, to, kind, raw)

    return put
