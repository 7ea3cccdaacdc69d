"""Rows of blocks in shared memory, decoded to pairs of 16-bit floats, eight columns at a time.

A code becomes a half by its bits: 0x6400 with a byte in its low half is 1024 plus that byte. Differences of
such numbers are exact, so a value is rounded once, where the scale is multiplied with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...formats import FORMATS
from ...formats._tables import FP4, IQ4
from ..intrinsics import bf16x2, codes8, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes8 import product_of_halves
from ..intrinsics.language import float32, uint32, uint64

# Pairs of floats of a kind that a kernel learns when it runs: 0 float32, 1 float16, 2 bfloat16.

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
LARGEST = 65504.0  # of halves: larger numbers are cut


@cache
def pair_loader() -> Any:
    """The device function ``load(start, pair, kind)``: two floats of memory, cut to what halves hold."""
    load8, load4, float_of, half_value = bf16x2.load8, codes8.load4, ptx.float_of, ptx.half_value
    larger, smaller, most = ptx.larger, ptx.smaller, float32(LARGEST)

    @inlined
    def load(start: Any, pair: Any, kind: Any) -> Any:
        low, high = float32(0), float32(0)
        if kind == uint32(0):
            two = load8(start + pair * uint64(8))
            low, high = float_of(two[0]), float_of(two[1])
            low, high = smaller(larger(low, -most), most), smaller(larger(high, -most), most)
        else:
            word = uint32(load4(start + pair * uint64(4)))
            if kind == uint32(1):
                low, high = half_value(word & uint32(0xFFFF)), half_value(word >> uint32(16))
            else:
                low, high = float_of(word << uint32(16)), float_of(word & uint32(0xFFFF0000))
        return low, high

    return load


@cache
def pair_of_words() -> Any:
    """The device function ``floats(first, second, kind)``: two floats of the words that memory has of them.

    They are cut to what halves hold.
    """
    float_of, half_value = ptx.float_of, ptx.half_value
    larger, smaller, most = ptx.larger, ptx.smaller, float32(LARGEST)

    @inlined
    def floats(first: Any, second: Any, kind: Any) -> Any:
        low, high = float_of(first), float_of(second)
        if kind == uint32(0):
            low, high = smaller(larger(low, -most), most), smaller(larger(high, -most), most)
        elif kind == uint32(1):
            low, high = half_value(first & uint32(0xFFFF)), half_value(first >> uint32(16))
        else:
            low, high = float_of(first << uint32(16)), float_of(first & uint32(0xFFFF0000))
        return low, high

    return floats


@cache
def pair_storer() -> Any:
    """The device function ``store(start, pair, kind, low, high)``: two floats, each rounded once."""
    store_pair, store4 = ptx.store_pair, ptx.store4
    to_halves, to_bfloats = halves.narrowed, bf16x2.narrowed

    @inlined
    def store(start: Any, pair: Any, kind: Any, low: Any, high: Any) -> None:
        if kind == uint32(0):
            store_pair(start + pair * uint64(8), low, high)
        else:
            word = to_halves(low, high) if kind == uint32(1) else to_bfloats(low, high)
            store4(start + pair * uint64(4), word)

    return store


MAGIC = 0x64646464  # the upper bytes of 1024 … 1279 as halves
EIGHT = 8  # columns


@inlined
def unaligned8(address: Any) -> Any:
    """Eight bytes of shared memory from any address on, as two words."""
    take4, permute = bf16x2.take4, bf16x2.permute
    at, shift = address & uint32(0xFFFFFFFC), address & uint32(3)
    picks = uint32(0x3210) + shift * uint32(0x1111)
    a, b, c = take4(at), take4(at + uint32(4)), take4(at + uint32(8))
    return permute(a, b, picks), permute(b, c, picks)


@inlined
def lower_two(word: Any) -> Any:
    """Bytes 0 and 1 of a word as halves, 1024 larger."""
    return bf16x2.permute(word, uint32(MAGIC), uint32(0x4140))


@inlined
def upper_two(word: Any) -> Any:
    """Bytes 2 and 3 of a word as halves, 1024 larger."""
    return bf16x2.permute(word, uint32(MAGIC), uint32(0x4342))


def table_reader(table: Any) -> Any:
    """The device function that looks up four bytes below 16 in a table of signed bytes, and adds 128."""
    w0, w1, w2, w3 = ((np.asarray(table).astype(np.int64) + 128).astype(np.uint8).view(np.uint32)).tolist()

    @inlined
    def looked_up(word: Any) -> Any:
        permute = bf16x2.permute
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
    return EIGHT if name in ("q8_0", "f32") else 2 * EIGHT


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
        low, high = unaligned8(block + uint32(qs) + unit * uint32(EIGHT))
        return low ^ uint32(0x80808080), high ^ uint32(0x80808080)

    @inlined
    def of_nibbles(block: Any, unit: Any) -> Any:
        low, high = unaligned8(block + uint32(qs) + unit * uint32(EIGHT))
        mask = uint32(0x0F0F0F0F)
        return low & mask, high & mask, low >> uint32(4) & mask, high >> uint32(4) & mask

    @inlined
    def of_fifths(block: Any, unit: Any) -> Any:
        a, b, c, d = of_nibbles(block, unit)
        first, second = halves.take1(block + uint32(qh) + unit), halves.take1(block + uint32(qh + 2) + unit)
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


ZEROS = {"q8_0": 128, "q4_0": 8, "q5_0": 16, "q4_1": 0, "q5_1": 0, "iq4_nl": 128, "mxfp4": 128}


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


@cache
def float_decoder() -> Decoder:
    """The decoder of rows of float32, which are cut to what halves hold."""
    take_floats, larger, smaller, narrowed = ptx.take_floats, ptx.larger, ptx.smaller, halves.narrowed
    most = float32(LARGEST)

    @inlined
    def cut(value: Any) -> Any:
        return smaller(larger(value, -most), most)

    @inlined
    def read(row: Any, unit: Any, packed: Any, i: Any) -> None:
        for j in range(2):
            four = take_floats(row + unit * uint32(32) + uint32(16 * j))
            packed[4 * i + 2 * j] = narrowed(cut(four[0]), cut(four[1]))
            packed[4 * i + 2 * j + 1] = narrowed(cut(four[2]), cut(four[3]))

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
    zero, by_power = halves.pair(1024 + ZEROS[name]), name == "mxfp4"
    units = 32 // unit_columns(name)
    count, shift = (2, 2) if units == 4 else (4, 1)  # words of codes; units of a block, as a power of two
    words = count + 2
    take1, take2, twice = halves.take1, halves.take2, halves.twice
    sub, fma, mul, half_bits, float_of = (
        halves.sub,
        halves.fma,
        product_of_halves,
        ptx.half_bits,
        ptx.float_of,
    )

    @inlined
    def scale(block: Any) -> Any:
        if by_power:  # 2 ** (e - 128), for halves of the table's codes
            e = take1(block)
            return half_bits(float_of((e - uint32(1)) << uint32(23)) if e > uint32(1) else float32(0))
        return take2(block)

    @inlined
    def read(row: Any, unit: Any, packed: Any, i: Any) -> None:
        block = row + (unit >> uint32(shift)) * uint32(size)
        four, o = codes(block, unit & uint32(units - 1)), words * i
        packed[o], packed[o + 1] = four[0], four[1]
        if count == 4:
            packed[o + 2], packed[o + 3] = four[2], four[3]
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
            value = sub(out[w], uint32(zero))
            if has_offset:
                out[w] = fma(value, d, packed[o + count + 1])
            else:
                out[w] = mul(value, d)

    return Decoder(words, read, convert)
