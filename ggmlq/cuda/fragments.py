"""A lane's words of a record as operands of ``mma``: codes as pairs of bfloat16, exact.

Bits are put under the exponent of 128, whose last place is worth one: no conversion. The 128 and the
code's zero are taken off again by one more instruction for two weights. Or codes stay ``raised``: then
what they have too much is taken off with the offset, which is multiplied with the sum of the
activations; or, where there is none but the tensor cores have time, sums begin with ``zero`` times that.

``unseen`` is a 0 that the assembler cannot know: masks with it stay in registers, where it would make
each constant anew, an instruction for every use.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from . import pairs, ptx
from .atoms import inlined
from .language import cuda, int32, uint32
from .layout import Layout

PLUS_128, MINUS_128 = np.uint32(pairs.pair(128)), np.uint32(pairs.pair(-128))
ONES = pairs.ONES


@cache
def words_of(kept: Layout) -> Any:
    """The device function that loads a lane's words of the record at an address of shared memory."""
    low, high, high_at = kept.low, kept.high, kept.high_at
    take4, take8, take16 = pairs.take4, pairs.take8, ptx.take16

    @inlined
    def load(at: Any, lane: Any, words: Any) -> None:
        if low == 2:
            d = take8(at + lane * uint32(8))
            words[0], words[1] = d[0], d[1]
        else:
            for i in range(low // 4):
                v = take16(at + uint32(512 * i) + lane * uint32(16))
                for j in range(4):
                    words[4 * i + j] = uint32(v[j])
        if high == 2:
            d = take8(at + uint32(high_at) + lane * uint32(8))
            words[low], words[low + 1] = d[0], d[1]
        elif high == 1:
            words[low] = take4(at + uint32(high_at) + lane * uint32(4))

    return load


@cache
def scales_of(kept: Layout, raised: bool = False, middle: int = 0) -> Any:
    """The device function that loads a lane's scales: of row g, then of row g + 8; offsets after each.

    They are exact in float32; but offsets are for the codes that ``fragment_of`` gives with the same
    arguments, and rounded once.
    """
    halves, subs, count = kept.half_words, kept.sub_words, kept.half_words + kept.sub_words
    halves_at, half_stride, subs_at, sub_stride = (
        kept.halves_at, kept.half_stride, kept.subs_at, kept.sub_stride
    )  # fmt: skip
    load_all, load_halves, load_subs = taker(count), taker(halves), taker(subs)
    together, make, runs, scales = kept.together, maker(kept), kept.runs, kept.scales
    too_much = np.float32((128 - kept.lowest) * raised - middle)
    adapts, fma = kept.has_offset and too_much != 0, ptx.fma

    @inlined
    def load(at: Any, lane: Any, values: Any) -> None:
        g, words = lane >> uint32(2), cuda.local.array(count, uint32)
        if together:
            load_all(at + uint32(halves_at) + g * uint32(half_stride), words, 0)
        else:
            load_halves(at + uint32(halves_at) + g * uint32(half_stride), words, 0)
            load_subs(at + uint32(subs_at) + g * uint32(sub_stride), words, halves)
        make(words, values)
        if adapts:
            for i in range(runs):
                values[runs + i] = fma(values[i], too_much, values[runs + i])
                j = scales + i
                values[runs + j] = fma(values[j], too_much, values[runs + j])

    return load


@cache
def taker(count: int) -> Any:
    """The device function that loads so many words of shared memory: 1, 2 or 4."""
    take4, take8, take16 = pairs.take4, pairs.take8, ptx.take16

    @inlined
    def take(at: Any, words: Any, to: Any) -> None:
        if count == 1:
            words[to] = take4(at)
        elif count == 2:
            d = take8(at)
            words[to], words[to + 1] = d[0], d[1]
        else:
            v = take16(at)
            for i in range(4):
                words[to + i] = uint32(v[i])

    return take


def maker(kept: Layout) -> Any:
    """The device function that makes scales and offsets of the words of halves and bytes."""
    if kept.single:
        return _singles(kept)
    if kept.powers:
        return _powers(kept)
    if kept.small_float:
        return _small_floats(kept)
    return _products(kept) if kept.subs else _halves(kept)


def _halves(kept: Layout) -> Any:
    runs, scales, blocks, has_offset, sign = kept.runs, kept.scales, kept.blocks, kept.has_offset, kept.sign
    half_value, each = ptx.half_value, kept.runs // kept.blocks

    @inlined
    def make(words: Any, values: Any) -> None:
        for part in range(1 + has_offset):
            for run in range(runs):
                word, at = words[part * blocks + run // each], part * runs + run
                low, high = half_value(word & uint32(0xFFFF)), half_value(word >> uint32(16))
                values[at] = -low if part and sign < 0 else low
                values[scales + at] = -high if part and sign < 0 else high

    return make


def _products(kept: Layout) -> Any:
    """Halves times bytes: a byte is put behind the exponent of 2**15, where it is worth as much as it says.

    ``half * (2**15 + byte) - half * (2**15 + zero)``, rounded once, is exact, and so is what is
    subtracted: it has 22 bits.
    """
    runs, scales, halves, has_offset = kept.runs, kept.scales, kept.half_words, kept.has_offset
    a_row, nibbles, unit = kept.subs * runs, kept.nibbles, np.float32(kept.unit)
    zeros = np.float32(-(2.0**15) - kept.zero), np.float32(-(2.0**15))
    minus_zero, minus_none, scaled = zeros[0], zeros[1], kept.unit != 1
    half_value, float_of, permute, fma = ptx.half_value, ptx.float_of, pairs.permute, ptx.fma
    kinds = 1 + has_offset
    assert kept.sign == 1

    @inlined
    def make(words: Any, values: Any) -> None:
        for side in range(2):
            for part in range(kinds):
                half = half_value(words[part] >> uint32(16 * side) & uint32(0xFFFF))
                if scaled:
                    half = half * unit
                less = half * (minus_none if part else minus_zero)
                for run in range(runs):
                    at = side * a_row + (0 if nibbles else part * runs) + run
                    word = words[halves + at // 4]
                    if nibbles:
                        word = word >> uint32(4 * part) & uint32(0x0F0F0F0F)
                    byte = permute(word, uint32(0x47000000), uint32(0x7404 | at % 4 << 4))
                    values[side * scales + part * runs + run] = fma(float_of(byte), half, less)

    return make


def _powers(kept: Layout) -> Any:
    """Powers of two from 2**-128 on: the exponent is one less, but for the first two, which are subnormal."""
    count = 2 * kept.runs
    permute, float_of = pairs.permute, ptx.float_of_int_bits

    @inlined
    def make(words: Any, values: Any) -> None:
        for i in range(count):
            e = int32(permute(words[i // 4], uint32(0), uint32(0x4440 | i % 4)))
            subnormal, normal = int32((e << 21) + 0x200000), int32((e << 23) - 0x800000)
            values[i] = float_of(max(subnormal, normal))

    return make


def _small_floats(kept: Layout) -> Any:
    """Four bits of exponent and three of mantissa where those of a float32 are, 2**119 too low.

    0x7F is 0; the sign is ignored.
    """
    count, far = 2 * kept.runs, np.float32(2.0**119)
    float_of, mul = ptx.float_of, ptx.mul

    @inlined
    def make(words: Any, values: Any) -> None:
        for w in range(count // 4):
            word = words[w]
            special = (word & uint32(0x7F7F7F7F)) + uint32(0x01010101) & ~word & uint32(0x80808080)
            word = uint32(word - special + (special >> uint32(7)))
            for i in range(4):
                bits = word >> uint32(4) if i == 3 else word << uint32(20 - 8 * i)
                values[4 * w + i] = mul(float_of(bits & uint32(0x07F00000)), far)

    return make


def _singles(kept: Layout) -> Any:
    """The halves of one float32 for all of a row."""
    runs, scales = kept.runs, kept.scales
    permute, float_of = pairs.permute, ptx.float_of

    @inlined
    def make(words: Any, values: Any) -> None:
        low, high = words[0], words[1]
        for run in range(runs):
            values[run] = float_of(permute(low, high, uint32(0x5410)))
            values[scales + run] = float_of(permute(low, high, uint32(0x7632)))

    return make


def zero_of(kept: Layout) -> int:
    """What sums of raised codes begin with, times the activations, as a pair; 0 where that is nothing."""
    if kept.has_offset or kept.levels or kept.low == 8:
        return 0
    return pairs.pair(kept.lowest - 128)


@cache
def fragment_of(kept: Layout, raised: bool = False, middle: int = 0) -> Any:
    """The device function that makes the four registers of a step out of a lane's words.

    ``middle``: taken off each code, where codes are bits.
    """
    if kept.fp4:
        return _from_fp4()
    if kept.levels:
        return _from_table(kept.levels)
    if kept.low == 8:
        return _from_bytes()
    return _from_bits(kept, raised, middle)


def _from_bits(kept: Layout, raised: bool, middle: int) -> Any:
    zero = np.uint32(pairs.pair(kept.lowest - middle - 128))
    fma, low, high, places = pairs.fma, kept.low, kept.high, 16 // kept.low
    mask = np.uint32(0x000F000F if low == 4 else 0x00030003)

    @inlined
    def fragment(words: Any, s: Any, a: Any, unseen: Any) -> None:
        for r in range(4):
            i = 4 * s + r
            u = words[i // places] >> uint32(low * (i % places)) & (mask | unseen)
            if high == 2:
                u |= (words[low + i // 8] >> uint32(i % 8 * 2) & uint32(0x00030003)) << uint32(low)
            elif high == 1:
                u |= (words[low] >> uint32(i) & uint32(0x00010001)) << uint32(low)
            a[r] = uint32(u | PLUS_128) if raised else fma(u | PLUS_128, ONES, zero)

    return fragment


def _from_bytes() -> Any:
    """The sign is worth -128: it turns the 128 to be taken off into 256."""
    fma = pairs.fma

    @inlined
    def fragment(words: Any, s: Any, a: Any, unseen: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            rest, sign = w & (uint32(0x007F007F) | unseen), w & (uint32(0x00800080) | unseen)
            a[r] = fma(rest | PLUS_128, ONES, sign | MINUS_128)

    return fragment


def _from_fp4() -> Any:
    """Exponent and mantissa of four bits where those of a bfloat16 end: the number, times 2**-127."""
    fma, large, none = pairs.fma, np.uint32(pairs.pair(2.0**127)), np.uint32(pairs.pair(-0.0))

    @inlined
    def fragment(words: Any, s: Any, a: Any, unseen: Any) -> None:
        w = words[s]
        for r in range(3):
            a[r] = fma(w << uint32(3 * r) & uint32(0x81C081C0), large | unseen, none)
        magnitude = w >> uint32(3) & uint32(0x01800180) | w >> uint32(7) & uint32(0x00400040)
        a[3] = fma(w << uint32(1) & uint32(0x80008000) | magnitude, large | unseen, none)

    return fragment


def _from_table(levels: tuple[int, ...]) -> Any:
    """Byte permutations look up four codes at a time: low bytes, high bytes, each in two halves."""
    bits = np.zeros(16, np.uint32)
    bits[: len(levels)] = np.array(levels, np.float32).view(np.uint32) >> 16
    low, high = (bits & 255).astype(np.uint8).view(np.uint32), (bits >> 8).astype(np.uint8).view(np.uint32)
    l0, l1, l2, l3 = (np.uint32(word) for word in low)
    h0, h1, h2, h3 = (np.uint32(word) for word in high)
    permute, wide = pairs.permute, len(levels) > 8

    @inlined
    def fragment(words: Any, s: Any, a: Any, unseen: Any) -> None:
        within = words[s] & uint32(0x77777777)
        half = words[s] >> uint32(1) & uint32(0x44444444) | uint32(0x32103210)
        for i in range(2):
            at, pick = within >> uint32(16 * i), half >> uint32(16 * i)
            lows, highs = permute(l0, l1, at), permute(h0, h1, at)
            if wide:
                lows = permute(lows, permute(l2, l3, at), pick)
                highs = permute(highs, permute(h2, h3, at), pick)
            a[2 * i] = permute(lows, highs, uint32(0x5140))
            a[2 * i + 1] = permute(lows, highs, uint32(0x7362))

    return fragment


def buffers(kept: Layout) -> tuple[int, int]:
    """Words and scales that a lane holds of a record."""
    return kept.bits, 2 * kept.scales
