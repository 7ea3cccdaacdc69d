"""Rows of keys and values on their way into shared memory: copied as they are, then decoded if need be."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, halves, integers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32, uint64
from .codes import EIGHT, decoder
from .floats import pair_loader
from .plan import Plan, row_bytes

CHUNK = 16  # bytes of a copy


@cache
def copier(plan: Plan, name: str, width: int) -> Any:
    """The device function ``copy(to, rows, apart, first, end)``: positions ``first`` … of a step.

    ``rows``: the address of position 0, ``apart`` bytes from position to position; positions from ``end``
    on become zeros. Rows that are decoded later lie without gaps.
    """
    threads, positions, copy16 = plan.threads, plan.positions, bf16x2.copy16_or_zeros
    pitch, length = plan.pitch(width), row_bytes(name, width)

    @inlined
    def copy_span(to: Any, rows: Any, apart: Any, first: Any, end: Any) -> None:
        there = int32(end - first) * int32(length)  # bytes up to the last position
        source = rows + uint64(first) * uint64(length)
        for i in range(-(-positions * length // (CHUNK * threads))):
            at = int32(cuda.threadIdx.x) * int32(CHUNK) + int32(i * CHUNK * threads)
            if at < int32(positions * length):
                size = max(int32(0), min(int32(CHUNK), there - at))
                start = uint64(at) if size > int32(0) else uint64(0)
                copy16(to + uint32(at), source + start, uint32(size))

    per_row = 2 * width // CHUNK

    @inlined
    def copy_rows(to: Any, rows: Any, apart: Any, first: Any, end: Any) -> None:
        for i in range(-(-positions * per_row // threads)):
            chunk = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row = chunk // uint32(per_row)
            within = (chunk - row * uint32(per_row)) * uint32(CHUNK)
            if row < uint32(positions):
                inside = first + row < end
                position = first + row if inside else first
                source = rows + uint64(position) * apart + uint64(within)
                copy16(to + row * uint32(pitch) + within, source, uint32(CHUNK) if inside else uint32(0))

    return copy_span if plan.decodes(name) else copy_rows


@cache
def tile_decoder(plan: Plan, name: str, width: int) -> Any:
    """The device function ``decode(rows, tile)``: the rows of a step as a tile of halves."""
    threads, positions, pitch = plan.threads, plan.positions, plan.pitch(width)
    length, chunks, decode_eight, put16 = row_bytes(name, width), width // EIGHT, decoder(name), integers.put16

    @inlined
    def decode(rows: Any, tile: Any) -> None:
        out = cuda.local.array(4, uint32)
        for i in range(-(-positions * chunks // threads)):
            at = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row = at // uint32(chunks)
            chunk = at - row * uint32(chunks)
            if row < uint32(positions):
                decode_eight(rows + row * uint32(length), chunk, out)
                put16(tile + row * uint32(pitch) + chunk * uint32(16), out[0], out[1], out[2], out[3])

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
