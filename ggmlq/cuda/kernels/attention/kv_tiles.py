"""K/V tiles: rows copied to shared memory as they are stored (``cp.async``), and decoded there to fp16.

A team of threads copies a stage together: each 16 bytes at once. A code becomes a half by its bits: 0x6400
with a byte in its low half is 1024 plus that byte. Differences of such numbers are exact, so a value is
rounded once, where the scale is multiplied with it.

Pairs of floats in memory, of queries and results, are of a kind that a kernel learns when it runs (KINDS).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....formats import FORMATS
from ....formats._tables import FP4, IQ4
from ...intrinsics import bf16x2, halves, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.codes8 import product_of_halves
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from .plan import FLOAT16_TYPES, Plan, row_bytes

#     memory                shared memory              shared memory
#     blocks of a row  ──►  stage: the same bytes  ──► tile: rows of halves, for ``ldmatrix`` or ``wgmma``
#     f16, bf16        ──►  tile

# --- copies: memory to shared memory ----------------------------------------------------------

CHUNK = 16  # bytes of a copy


@cache
def copier(plan: Plan, name: str, width: int) -> Any:
    """The device function ``copy(to, rows, stride, first, end, rank)``: positions ``first`` … of a team.

    ``rank``: of the thread in its team. ``rows``: the address of position 0, ``stride`` bytes from position
    to position. Rows of blocks lie without gaps, and are copied as one span.

    Positions from ``end`` on become zeros. That matters for values: p is 0 there, but 0 × NaN, which
    uninitialized memory may hold, would be a NaN in the sums.
    """
    threads, positions, copy16 = plan.team_threads, plan.team_positions, ptx.copy16_or_zeros
    pitch, length = plan.pitch(width) if name in FLOAT16_TYPES else 0, row_bytes(name, width)
    size, chunks = positions * length, -(-positions * length // CHUNK)

    @inlined
    def copy_span(to: Any, rows: Any, stride: Any, first: Any, end: Any, rank: Any) -> None:
        there = (int32(end) - int32(first)) * int32(length)  # bytes up to the last position
        source = rows + uint64(first) * length
        if there >= int32(size):  # all positions exist: nothing to compare for each 16 bytes
            source, to = source + uint64(rank * CHUNK), uint32(to + rank * CHUNK)
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
    def copy_rows(to: Any, rows: Any, stride: Any, first: Any, end: Any, rank: Any) -> None:
        for i in range(-(-positions * per_row // threads)):
            chunk = rank + uint32(i * threads)
            row = chunk // per_row
            within = (chunk - row * per_row) * CHUNK
            if row < positions:
                # A copy of 0 bytes writes zeros; its address is that of a row that exists all the same.
                inside = first + row < end
                position = first + row if inside else 0
                source = rows + position * stride + within
                copy16(to + row * pitch + within, source, CHUNK if inside else 0)

    return copy_rows if name in FLOAT16_TYPES else copy_span


class Team(NamedTuple):
    """The place of a thread in its team: the block, or a warp that has positions of its own (plan.py)."""

    first_row: Any  # first position of the team in a step
    rank: Any


@cache
def stage_copier(plan: Plan) -> Any:
    """The device function that starts the copies of a step: a team's keys and values, into a stage.

    It closes a group of copies even where there is no such step: each thread counts groups to know which
    stage has arrived (``cp.async.wait_group``), and would otherwise wait for too few of them at the end. A
    thread waits for its own copies alone: callers wait for the group, then for the team, before they decode.
    """
    copy_keys, copy_values = copier(plan, plan.k, plan.width), copier(plan, plan.v, plan.width_v)
    keys_at, values_at = plan.keys_at, plan.values_at
    stage_k, stage_v = plan.stage(plan.k, plan.width), plan.stage(plan.v, plan.width_v)
    length_k, length_v = plan.length(plan.k, plan.width), plan.length(plan.v, plan.width_v)
    positions, v_in_k, commit = plan.positions, plan.v_in_k, ptx.commit

    @inlined
    def copy_stage(at: Any, stage: Any, work: Any, strides: Any, step: Any, team: Any) -> None:
        kv = work.kv
        if step < kv.end_step:
            first, to = uint32(step * int32(positions)) + team.first_row, uint32(kv.end)
            place = at + keys_at + stage * stage_k + team.first_row * length_k
            copy_keys(place, work.keys, strides.k_position, first, to, team.rank)
            if not v_in_k:
                place = at + values_at + stage * stage_v + team.first_row * length_v
                copy_values(place, work.values, strides.v_position, first, to, team.rank)
        commit()

    return copy_stage


# --- blocks to halves -------------------------------------------------------------------------

FP16_1024 = 0x64646464  # the upper bytes of 1024 … 1279 as halves
UNIT_COLUMNS = 8  # that a thread decodes from two words
MAX_HALF = 65504.0  # larger numbers are cut
HALF_LIMIT = float32(MAX_HALF)


@inlined
def unaligned8(address: Any) -> Any:
    """Eight bytes of shared memory from any address on, as two words."""
    take4, permute = ptx.take4, ptx.permute
    # Blocks have 17, 18, 20, 22, 24 or 34 bytes, so their codes begin anywhere, and loads must be aligned.
    at, shift = address & 0xFFFFFFFC, address & 3
    picks = 0x3210 + shift * 0x1111
    a, b, c = take4(at), take4(at + 4), take4(at + 8)
    return permute(a, b, picks), permute(b, c, picks)


@inlined
def lower_two(word: Any) -> Any:
    """Bytes 0 and 1 of a word as halves, 1024 larger."""
    return ptx.permute(word, uint32(FP16_1024), uint32(0x4140))


@inlined
def upper_two(word: Any) -> Any:
    """Bytes 2 and 3 of a word as halves, 1024 larger."""
    return ptx.permute(word, uint32(FP16_1024), uint32(0x4342))


def table_reader(table: Any) -> Any:
    """The device function that looks up four bytes below 16 in a table of signed bytes, and adds 128."""
    w0, w1, w2, w3 = ((np.asarray(table).astype(np.int64) + 128).astype(np.uint8).view(np.uint32)).tolist()

    # ``permute`` picks from eight bytes by three bits of each nibble: two of them look into both halves of
    # the table, and bit 3 of a code says which one counts.
    @inlined
    def looked_up(word: Any) -> Any:
        permute = ptx.permute
        nibbles = (word | word >> uint32(4)) & uint32(0x00FF00FF)
        nibbles = (nibbles | nibbles >> uint32(8)) & uint32(0x7777)
        low, high = permute(uint32(w0), uint32(w1), nibbles), permute(uint32(w2), uint32(w3), nibbles)
        upper = uint32(((word >> uint32(3)) & uint32(0x01010101)) * uint32(0xFF))
        return (low & ~upper) | (high & upper)

    return looked_up


@inlined
def spread(bits: Any) -> Any:
    """Four bits as the bits 4 of four bytes."""
    return uint32((uint32(bits & uint32(15)) * uint32(0x00204081)) & uint32(0x01010101)) << uint32(4)


def unit_columns(name: str) -> int:
    """Columns that a thread decodes together: sixteen of types with two codes in a byte."""
    return UNIT_COLUMNS if name in ("q8_0", "f32") else 2 * UNIT_COLUMNS


@cache
def code_reader(name: str) -> Any:
    """The device function ``codes(block, unit)``: words of codes, as bytes without a sign.

    Of q8_0 it gives two words, eight codes. Of types with two codes in a byte it gives four: eight codes, and
    the eight that lie sixteen columns on.
    """
    offsets = FORMATS[name].dtype.fields
    assert offsets is not None
    qs, qh = offsets["qs"][1], offsets["qh"][1] if "qh" in offsets else 0
    table = {"iq4_nl": IQ4, "mxfp4": FP4}.get(name)
    look_up: Any = None if table is None else table_reader(table)

    @inlined
    def of_bytes(block: Any, unit: Any) -> Any:
        low, high = unaligned8(block + qs + unit * UNIT_COLUMNS)
        return low ^ 0x80808080, high ^ 0x80808080

    @inlined
    def of_nibbles(block: Any, unit: Any) -> Any:
        low, high = unaligned8(block + qs + unit * UNIT_COLUMNS)
        mask = uint32(0x0F0F0F0F)
        return low & mask, high & mask, low >> 4 & mask, high >> 4 & mask

    @inlined
    def of_fifths(block: Any, unit: Any) -> Any:
        a, b, c, d = of_nibbles(block, unit)
        # bit 4 of codes: qh has those of 16 columns in its lower half, of the 16 behind in its upper one
        first, second = ptx.take1(block + uint32(qh) + unit), ptx.take1(block + uint32(qh + 2) + unit)
        a, b = a | spread(first), b | spread(first >> uint32(4))
        return a, b, c | spread(second), d | spread(second >> uint32(4))

    @inlined
    def of_table(block: Any, unit: Any) -> Any:
        a, b, c, d = of_nibbles(block, unit)
        return look_up(a), look_up(b), look_up(c), look_up(d)

    if name == "q8_0":
        return of_bytes
    if table is not None:
        return of_table
    return of_fifths if "qh" in offsets else of_nibbles


ZERO_POINTS = {"q8_0": 128, "q4_0": 8, "q5_0": 16, "q4_1": 0, "q5_1": 0, "iq4_nl": 128, "mxfp4": 128}


class Decoder(NamedTuple):
    """Two device functions, so that a thread reads several units before it writes one.

    ``read(row, unit, packed, i)`` puts a unit's ``words`` words into an array, ``convert(packed, i, out)``
    makes pairs of halves of them.
    """

    words: int
    read: Any
    convert: Any


@cache
def decoder(name: str) -> Decoder:
    """The decoder of a type's units."""
    return float_decoder() if name == "f32" else block_decoder(name)


@inlined
def cut(value: Any) -> Any:
    """A float32 cut to what halves hold."""
    return ptx.smaller(ptx.larger(value, -HALF_LIMIT), HALF_LIMIT)


def float_decoder() -> Decoder:
    """The decoder of rows of float32."""

    @inlined
    def read(row: Any, unit: Any, packed: Any, i: Any) -> None:
        for j in range(2):
            four = ptx.take_floats(row + unit * 32 + uint32(16 * j))
            packed[4 * i + 2 * j] = halves.narrowed(cut(four[0]), cut(four[1]))
            packed[4 * i + 2 * j + 1] = halves.narrowed(cut(four[2]), cut(four[3]))

    @inlined
    def convert(packed: Any, i: Any, out: Any) -> None:
        for j in range(4):
            out[j] = packed[4 * i + j]

    return Decoder(4, read, convert)


@cache
def block_decoder(name: str) -> Decoder:
    """The decoder of rows of blocks of 32."""
    fmt = FORMATS[name]
    size, codes, has_offset = fmt.dtype.itemsize, code_reader(name), "m" in (fmt.dtype.names or ())
    zero, by_power = halves.pair(1024 + ZERO_POINTS[name]), name == "mxfp4"
    units = 32 // unit_columns(name)
    count, shift = (2, 2) if units == 4 else (4, 1)  # words of codes; units of a block, as a power of two
    words = count + 2
    take1, take2, twice = ptx.take1, ptx.take2, ptx.twice
    sub, fma, mul, half_bits, float_of = (
        halves.sub,
        halves.fma,
        product_of_halves,
        ptx.half_bits,
        ptx.float_of,
    )

    @inlined
    def scale(block: Any) -> Any:
        if by_power:  # 2 ** (e - 128): the table has codes twice as large, so that all are integers
            e = take1(block)
            return half_bits(float_of((e - uint32(1)) << uint32(23)) if e > uint32(1) else float32(0))
        return take2(block)

    @inlined
    def read(row: Any, unit: Any, packed: Any, i: Any) -> None:
        block = row + (unit >> shift) * size
        four, o = codes(block, unit & units - 1), words * i
        packed[o], packed[o + 1] = four[0], four[1]
        if count == 4:
            packed[o + 2], packed[o + 3] = four[2], four[3]
        # the scale in both halves of a word: it is multiplied with a pair of codes
        packed[o + count] = twice(scale(block))
        if has_offset:
            packed[o + count + 1] = twice(take2(block + uint32(2)))

    @inlined
    def convert(packed: Any, i: Any, out: Any) -> None:
        o = words * i
        d = packed[o + count]
        for w in range(count):
            out[2 * w], out[2 * w + 1] = lower_two(packed[o + w]), upper_two(packed[o + w])
        for w in range(2 * count):
            value = sub(out[w], uint32(zero))  # (1024 + code) - (1024 + zero point), exact
            if has_offset:
                out[w] = fma(value, d, packed[o + count + 1])
            else:
                out[w] = mul(value, d)

    return Decoder(words, read, convert)


@cache
def padded_putter(name: str, pitch: int) -> Any:
    """The device function that puts a decoded unit into a tile whose rows are ``pitch`` bytes apart."""
    put16, two = ptx.put16, unit_columns(name) == 2 * UNIT_COLUMNS

    @inlined
    def put(tile: Any, row: Any, unit: Any, out: Any) -> None:
        to = tile + row * pitch
        if two:
            to += (unit >> 1) * 64 + (unit & 1) * 16
            put16(to, out[0], out[1], out[2], out[3])
            put16(to + 32, out[4], out[5], out[6], out[7])
        else:
            put16(to + unit * 16, out[0], out[1], out[2], out[3])

    return put


@cache
def tile_decoder(threads: int, positions: int, name: str, width: int, put: Any) -> Any:
    """The device function ``decode(rows, tile, rank)``: a team's rows of blocks as a tile of halves.

    ``put``: puts a unit into the tile, padded or swizzled. A thread reads some units before it writes the
    first: the assembler moves no load before a store. No barrier is here: callers wait for the team's copies
    before, and for the team before the tile is multiplied or its stage is filled again.
    """
    length, units = row_bytes(name, width), width // unit_columns(name)
    words, read, convert = decoder(name)
    count = positions * units
    together = next(n for n in (4, 2, 1) if count % (threads * n) == 0 or n == 1)
    room, whole = words * together, count % threads == 0

    @inlined
    def decode(rows: Any, tile: Any, rank: Any) -> None:
        out, packed = cuda.local.array(8, uint32), cuda.local.array(room, uint32)
        for first in range(0, count, threads * together):
            # loads of all units, then stores of all: else each load waits for the store before
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // units
                if whole or row < uint32(positions):
                    # neighbouring threads have neighbouring units of a row
                    read(rows + row * length, at - row * units, packed, i)
            for i in range(together):
                at = rank + uint32(first + i * threads)
                row = at // units
                unit = at - row * units
                if whole or row < uint32(positions):
                    convert(packed, i, out)
                    put(tile, row, unit, out)

    return decode


# --- blocks whose codes are used as they are ---------------------------------------------------
#
# mma.py and swap_ab.py multiply codes of q8_0 and q4_0 that no tile of halves was made of. A byte in the low
# bits of an fp16 is a subnormal, b · 2⁻²⁴; subtracting the zero point is exact.

BLOCK_COLUMNS = 32
SUBNORMAL_BITS = 24  # powers of two by which a code in a half is too small
# Powers of two that p is multiplied by, so that few of its products with scales are too small for a half.
# None is too large: no value exceeds 65504, so scales are up to 65504 / 127 and 65504 / 8.
P_LIFT_BITS = {"q8_0": 6, "q4_0": 2}


@inlined
def two_pairs(word: Any) -> Any:
    """Bytes 0 and 1, then 2 and 3 of a word as halves without other bits."""
    low = ptx.permute(word, uint32(0), uint32(0x4140))
    return low, ptx.permute(word, uint32(0), uint32(0x4342))


# --- floats of a kind -------------------------------------------------------------------------

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}  # a kernel learns a kind when it runs


@inlined
def pair_of_words(first: Any, second: Any, kind: Any) -> Any:
    """Two floats of the words that memory has of them, cut to what halves hold."""
    low, high = ptx.float_of(first), ptx.float_of(second)
    if kind == 0:
        low, high = cut(low), cut(high)
    elif kind == 1:
        low, high = ptx.half_value(first & 0xFFFF), ptx.half_value(first >> 16)
    else:
        low, high = ptx.float_of(first << 16), ptx.float_of(first & 0xFFFF0000)
    return low, high


@inlined
def load_pair(start: Any, pair: Any, kind: Any) -> Any:
    """Two floats of memory, cut to what halves hold."""
    low, high = float32(0), float32(0)
    if kind == 0:
        two = ptx.load8(start + pair * 8)
        low, high = ptx.float_of(two[0]), ptx.float_of(two[1])
        low, high = cut(low), cut(high)
    else:
        word = uint32(ptx.load4_nc(start + pair * 4))
        low, high = pair_of_words(word, word, kind)
    return low, high


@inlined
def store_pair(start: Any, pair: Any, kind: Any, low: Any, high: Any) -> None:
    """Store two floats, each rounded once."""
    if kind == 0:
        ptx.store_pair(start + pair * 8, low, high)
    else:
        word = halves.narrowed(low, high) if kind == 1 else bf16x2.narrowed(low, high)
        ptx.store4(start + pair * 4, word)
