"""A lane's words of a fragment as operands of ``mma``: pairs of bfloat16, pairs of float16, bytes; all exact.

One packed word of 4-bit codes, that of sixteen s (columns 16 s … + 15) of lane 4 g + t (pack.py):

    bits        31-28  27-24  23-20  19-16 | 15-12  11-8    7-4    3-0
    register      a3     a2     a1     a0  |   a3     a2     a1     a0      of the sixteen's operand
    row          g+8     g     g+8     g   |  g+8     g     g+8     g
    column      4t+3   4t+3   4t+1   4t+1  |  4t+2   4t+2   4t     4t

So the halves of a word are the halves of four registers, and register r is one shift and one ``lop3`` away:

    word >> 4 r             …  ⟨4t+1⟩ …  ⟨4t⟩
    & 0x000F000F | 0x43004300                     one lop3: 0x4300 is 128, whose last place is worth one
    = 128 + code, twice     then fma takes the 128 and the code's zero off both

Planes of two bits have the registers of two sixteens in a word, from bit 2 (4 (s % 2) + r) on, those of one
bit all four sixteens; both halves as above. Bytes have two registers of a sixteen in a word: byte r % 2 + 2 e
of word 2 s + r // 2. A code of 3, 5 or 6 bits has its higher bits in a second plane, which a shift and
another lop3 put above.

Codes that are looked up lie as nibbles instead: nibble 2 r + e of word s is column e of register r.
``prmt`` takes four of them as its picks, 3 bits each, and finds four bytes in a table of eight at once:

    prmt(table 0-3, table 4-7, word)           the bytes if bit 3 is 0
    prmt(table 8-11, table 12-15, word)        the bytes if it is 1
    prmt(these, those, bit 3 · 4 + 0, 1, 2, 3)  byte i of either
    prmt(low bytes, high bytes, 0x5140)        bytes 0, 1 of both, zipped: the pair of register 0 (or 2)
    prmt(low bytes, high bytes, 0x7362)        bytes 2, 3 of both: register 1 (or 3)

``opaque``: a zero from :func:`~ggmlq.cuda.intrinsics.lane.opaque_zero`, which keeps masks in registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import int32, uint32
from .layout import PackedLayout

BOTH = 0x00010001  # a bit in each half


@cache
def word_loader(layout: PackedLayout) -> Any:
    """The device function that loads a lane's words of the fragment at an address of shared memory."""
    low, high, high_at = layout.low, layout.high, layout.high_at
    take4, take8, take16 = ptx.take4, ptx.take8, ptx.take16

    @inlined
    def load(at: Any, lane: Any, words: Any) -> None:
        if low == 2:
            d = take8(at + lane * 8)
            words[0], words[1] = d[0], d[1]
        else:
            for i in range(low // 4):
                v = take16(at + uint32(512 * i) + lane * 16)
                for j in range(4):
                    words[4 * i + j] = uint32(v[j])
        if high == 2:
            d = take8(at + high_at + lane * 8)
            words[low], words[low + 1] = d[0], d[1]
        elif high == 1:
            words[low] = take4(at + high_at + lane * 4)

    return load


def buffer_sizes(layout: PackedLayout) -> tuple[int, int]:
    """The numbers of words and of scales that a lane holds of a fragment."""
    return layout.bits, 2 * layout.scales


# --- pairs of 16-bit floats -----------------------------------------------------------------------
#
# The bits of a code are put under an exponent by which the last place of the float is worth one, 128 for
# bfloat16 and 1024 for float16: no conversion is needed. One more instruction for two weights takes that
# number and the code's zero off again. Or codes of bfloat16 stay *raised*, by 128 less the lowest code, and
# that excess is taken off the sums (operand.py).
#
# A half has three bits more. So a plane of four bits takes two registers out of each byte without a shift
# between them: the upper nibble, under the exponent of 1024, counts sixteen.


def can_stay_raised(layout: PackedLayout) -> bool:
    """True where codes can stay raised: codes of eight bits and codes that are looked up cannot."""
    return not layout.levels and layout.low != 8


def excess_pair(layout: PackedLayout) -> int:
    """The pair of bfloat16 to add for each activation where no offset takes the excess off; 0 for none."""
    return bf16x2.pair(layout.lowest - 128) if can_stay_raised(layout) and not layout.has_offset else 0


@cache
def sixteen_unpacker(layout: PackedLayout, kind: str = "bfloat16", raised: bool = False) -> Any:
    """The device function (words, s, a, opaque) that makes the four registers of sixteen s from a lane's
    words, in pairs of ``kind``.
    """
    half = kind == "float16"
    if layout.fp4:
        return _halves_of_fp4() if half else _bfloats_of_fp4()
    if layout.levels:
        return _looked_up(layout.levels, kind)
    if layout.low == 8:
        return _halves_of_bytes() if half else _bfloats_of_bytes()
    if half and layout.bits == 4:
        return _halves_of_nibbles(layout)
    under, fma, sub, ones = _code_under(layout, kind), bf16x2.fma, halves.sub, bf16x2.ones
    zero = np.uint32(halves.pair(1024 - layout.lowest) if half else bf16x2.pair(layout.lowest - 128))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            u = under(words, 4 * s + r, opaque)
            if half:
                a[r] = sub(u, zero)
            else:
                a[r] = u if raised else fma(u, ones, zero)

    return unpack_sixteen


def _code_under(layout: PackedLayout, kind: str) -> Any:
    """The device function for the two codes of register i of a lane under the exponent of 128 or of 1024."""
    low, high, places, masked_or = layout.low, layout.high, 16 // layout.low, ptx.masked_or
    exponent = np.uint32(halves.pair(1024) if kind == "float16" else bf16x2.pair(128))
    mask, above = np.uint32(((1 << low) - 1) * BOTH), np.uint32(((1 << high) - 1) * BOTH << low)

    @inlined
    def code(words: Any, i: Any, opaque: Any) -> Any:
        u = masked_or(words[i // places] >> uint32(low * (i % places)), mask | opaque, exponent)
        if high:  # one shift puts its bits in place
            bits, by = words[low + i * high // 16], i * high % 16 - low
            u = masked_or(bits >> uint32(by) if by > 0 else uint32(bits << uint32(-by)), above, u)
        return u

    return code


UPPER_NIBBLES = np.uint32(0x00F000F0)
PLUS_1024, NIBBLES = np.uint32(halves.pair(1024)), np.uint32(0x000F000F)


def _halves_of_nibbles(layout: PackedLayout) -> Any:
    fma, sub, masked_or = halves.fma, halves.sub, ptx.masked_or
    start, lifted_start = (
        np.uint32(halves.pair(1024 - layout.lowest)),
        np.uint32(halves.pair(layout.lowest - 64)),
    )
    sixteenth = np.uint32(halves.pair(1 / 16))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(0, 4, 2):
            w = words[s] >> uint32(4 * r)
            a[r] = sub(masked_or(w, NIBBLES | opaque, PLUS_1024), start)
            a[r + 1] = fma(masked_or(w, UPPER_NIBBLES | opaque, PLUS_1024), sixteenth, lifted_start)

    return unpack_sixteen


def _bfloats_of_bytes() -> Any:
    """Codes of eight bits. The sign is worth -128: it turns the 128 to be taken off into 256."""
    fma, masked_or, ones = bf16x2.fma, ptx.masked_or, bf16x2.ones
    plus_128, minus_128 = np.uint32(bf16x2.pair(128)), np.uint32(bf16x2.pair(-128))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            rest = masked_or(w, 0x007F007F | opaque, plus_128)
            a[r] = fma(rest, ones, masked_or(w, 0x00800080 | opaque, minus_128))

    return unpack_sixteen


def _halves_of_bytes() -> Any:
    """Codes of eight bits: with the sign turned a byte is the code + 128."""
    sub, masked_xor, raised = halves.sub, ptx.masked_xor, np.uint32(halves.pair(1024 + 128))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            a[r] = sub(masked_xor(w, 0x00FF00FF | opaque, raised), raised)

    return unpack_sixteen


def _bfloats_of_fp4() -> Any:
    """Floats of four bits: their exponent and mantissa at the end of those of a bfloat16, which is the
    number × 2**-127.
    """
    fma, large, none = bf16x2.fma, np.uint32(bf16x2.pair(2.0**127)), np.uint32(bf16x2.pair(-0.0))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        w = words[s]
        for r in range(3):
            a[r] = fma(w << uint32(3 * r) & 0x81C081C0, large | opaque, none)
        magnitude = w >> 3 & 0x01800180 | w >> 7 & 0x00400040
        a[3] = fma(w << 1 & 0x80008000 | magnitude, large | opaque, none)

    return unpack_sixteen


def _halves_of_fp4() -> Any:
    """Floats of four bits: their exponent and mantissa at the end of the exponent of a half and before its
    mantissa, which is the number × 2**-15.
    """
    fma, masked_or = halves.fma, ptx.masked_or
    large, none = np.uint32(halves.pair(2.0**15)), np.uint32(halves.pair(-0.0))
    sign, rest = np.uint32(0x80008000), np.uint32(0x0E000E00)

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        w = words[s]
        for r in range(3):
            magnitude = w << uint32(3 * r + 3) & rest
            a[r] = fma(masked_or(w << uint32(3 * r), sign | opaque, magnitude), large | opaque, none)
        magnitude = w & 0x0C000C00 | w >> 4 & 0x02000200
        a[3] = fma(masked_or(w << 1, sign | opaque, magnitude), large | opaque, none)

    return unpack_sixteen


# --- codes that are looked up ---------------------------------------------------------------------

ZIPPED_LOW, ZIPPED_HIGH = 0x5140, 0x7362  # picks of prmt: bytes 0 and 1 of both words in turns, then 2 and 3


def _finder(levels: tuple[int, ...], kind: str) -> Any:
    """The device function for the low bytes and the high bytes of four levels as ``kind``; "int8" has low
    ones alone.
    """
    values, wide, two = np.array(levels, np.float32), len(levels) > 8, kind != "int8"
    table = np.zeros(16, np.uint16)
    if two:
        table[: len(levels)] = (
            values.astype(np.float16).view(np.uint16) if kind == "float16" else values.view(np.uint32) >> 16
        )
    else:
        table[: len(levels)] = np.array(levels) & 255
    lows, highs = (
        (table & 255).astype(np.uint8).view(np.uint32),
        (table >> 8).astype(np.uint8).view(np.uint32),
    )
    l0, l1, l2, l3 = (np.uint32(word) for word in lows)
    h0, h1, h2, h3 = (np.uint32(word) for word in highs)
    permute = ptx.permute

    @inlined
    def find(at: Any, pick: Any) -> Any:
        low = permute(l0, l1, at)
        high = permute(h0, h1, at) if two else low
        if wide:
            low = permute(low, permute(l2, l3, at), pick)
            high = permute(high, permute(h2, h3, at), pick) if two else low
        return low, high

    return find


def _looked_up(levels: tuple[int, ...], kind: str) -> Any:
    """Levels as bfloat16 or float16: byte permutations find four at a time, low bytes and high bytes."""
    find, permute = _finder(levels, kind), ptx.permute

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any) -> None:
        within = words[s] & 0x77777777
        third = words[s] >> 1 & 0x44444444 | 0x32103210
        for i in range(2):
            low, high = find(within >> uint32(16 * i), third >> uint32(16 * i))
            a[2 * i] = permute(low, high, uint32(ZIPPED_LOW))
            a[2 * i + 1] = permute(low, high, uint32(ZIPPED_HIGH))

    return unpack_sixteen


# --- halves of codes times sub-scales -------------------------------------------------------------
#
# Codes of some types are exact as halves even times the sub-scales of their runs, integers too: those of
# q2_K, q3_K, q4_K and q5_K have at most eleven bits then. So one scale is left for all runs of a block, and
# the instruction that takes the 1024 off multiplies as well (*folded*).

MOST_EXACT = 2048  # the last of the integers that are all halves
NIBBLE, SIX_BITS, BYTE = 15, 63, 255  # largest sub-scales; whole bytes are stored with 128 added


def can_fold(layout: PackedLayout) -> bool:
    """True where codes times sub-scales are halves: integers of at most eleven bits."""
    if layout.scale != "half" or not layout.subs or layout.levels or layout.low == 8 or layout.blocks > 1:
        return False
    code = max(-layout.lowest, (1 << layout.bits) - 1 + layout.lowest)
    most = NIBBLE if layout.nibbles else BYTE if layout.sub_zero > SIX_BITS else SIX_BITS
    return code * max(layout.sub_zero, most - layout.sub_zero) <= MOST_EXACT


@cache
def sub_pairs(layout: PackedLayout) -> Any:
    """The device function for the sub-scales of a run as pairs of equal halves: of row g, then of row g + 8.

    ``words``: from scales.py:number_loader.
    """
    runs, first, nibbles = layout.runs, layout.half_words, layout.nibbles
    narrow, permute, sub = layout.subs * runs == 2, ptx.permute, halves.sub
    excess = np.uint32(halves.pair(1024 + layout.sub_zero))

    @inlined
    def pairs(words: Any, run: Any) -> Any:
        low, high = words[first], words[first] if narrow else words[first + 1]
        if nibbles:
            low, high = low & uint32(0x0F0F0F0F), high & uint32(0x0F0F0F0F)
        at = uint32(0x4040 + 0x0101 * run)
        after = uint32(at + uint32(0x0202)) if narrow else at
        tops = uint32(0x64646464)
        return sub(permute(low, tops, at), excess), sub(permute(high, tops, after), excess)

    return pairs


@cache
def folded_unpacker(layout: PackedLayout) -> Any:
    """The device function that makes the four registers of a sixteen, codes times their run's sub-scales."""
    under, fma, sub, masked_or = _code_under(layout, "float16"), halves.fma, halves.sub, ptx.masked_or
    start, none = np.uint32(halves.pair(1024 - layout.lowest)), np.uint32(halves.pair(-0.0))
    minus_1024, minus_64 = np.uint32(halves.pair(-1024)), np.uint32(halves.pair(-64))
    sixteenth, from_zero = np.uint32(halves.pair(1 / 16)), layout.lowest == 0

    @inlined
    def unpack_nibbles(words: Any, s: Any, a: Any, opaque: Any, subs: Any) -> None:
        for r in range(0, 4, 2):
            w = words[s] >> uint32(4 * r)
            u, v = masked_or(w, NIBBLES | opaque, PLUS_1024), masked_or(w, UPPER_NIBBLES | opaque, PLUS_1024)
            a[r] = fma(u, subs[0], fma(subs[0], minus_1024, none))
            a[r + 1] = fma(v, fma(subs[1], sixteenth, none), fma(subs[1], minus_64, none))

    @inlined
    def unpack_sixteen(words: Any, s: Any, a: Any, opaque: Any, subs: Any) -> None:
        for r in range(4):
            u = under(words, 4 * s + r, opaque)
            if from_zero:
                a[r] = fma(u, subs[r % 2], fma(subs[r % 2], minus_1024, none))
            else:
                a[r] = fma(sub(u, start), subs[r % 2], none)

    return unpack_nibbles if layout.bits == 4 else unpack_sixteen


# --- bytes ----------------------------------------------------------------------------------------
#
# A sixteen gives two words: of row g and of row g + 8. Their four bytes are columns 4 t, 4 t + 2,
# 4 t + 1, 4 t + 3: so those of 4-bit codes need one shift and one mask. Codes of fewer bits than eight stay
# raised by the lowest code; looked up ones and bytes are the codes themselves.
#
# Codes *with their sign* are codes themselves in all cases. Where the lowest code is the one with the sign
# alone they begin at the sign of a byte, whose bit is turned over; else the lowest code is taken off.

SIGNS = 0x80808080


def serves_bytes(layout: PackedLayout) -> bool:
    """True for layouts whose codes can be bytes: all but floats of four bits, whose bits lie otherwise."""
    return not layout.fp4


def lowest_byte(layout: PackedLayout) -> int:
    """The code of a byte of 0: what codes that stay raised are to be lowered by."""
    return 0 if layout.levels else layout.lowest


def byte_unit(layout: PackedLayout) -> int:
    """The number of bytes' units that a code counts: signed codes of few bits begin at the sign of a byte."""
    return 1 << 8 - layout.bits if _is_symmetric(layout) else 1


def _is_symmetric(layout: PackedLayout) -> bool:
    """True where the lowest code is the one with the sign alone."""
    return not layout.levels and layout.low < 8 and layout.lowest == -(1 << layout.bits - 1)


@cache
def byte_unpacker(layout: PackedLayout) -> Any:
    """The device function (words, sixteen, a, at, opaque) that makes its words of rows g and g + 8."""
    if layout.levels or layout.low == 8:
        return _whole_bytes(layout)
    return _bytes_of_planes(layout, 0)


@cache
def signed_unpacker(layout: PackedLayout) -> Any:
    """As :func:`byte_unpacker`, of codes themselves, times ``byte_unit``."""
    if _is_symmetric(layout):
        return _bytes_of_planes(layout, 8 - layout.bits)
    if layout.levels or layout.low == 8 or not layout.lowest:
        return byte_unpacker(layout)
    return _lowered(layout)


@inlined
def _moved(word: Any, by: Any) -> Any:
    """A word whose bits move down, or up where ``by`` is below zero."""
    return word >> uint32(by) if by > 0 else uint32(word << uint32(-by))


def _plane(width: int, to: int, masked: Any) -> Any:
    """The device function that adds one plane of codes, ``width`` bits each, at bit ``to`` of the bytes.

    ``masked``: ptx.masked_xor turns codes' highest bit over, which becomes the sign.
    """
    bits = (1 << width) - 1
    even, odd = np.uint32((bits << to) * BOTH), np.uint32((bits << to + 8) * BOTH)
    at_once = 2 * width == 8
    all_bytes = np.uint32(even | odd)

    @inlined
    def add(words: Any, first: Any, i: Any, others: Any, opaque: Any) -> Any:
        word, at = words[first + i * width // 16], i * width % 16
        if at_once:  # the bits of the odd bytes lie eight above those of the even ones
            return masked(_moved(word, at - to), all_bytes | opaque, others)
        others = masked(_moved(word, at - to), even | opaque, others)
        return masked(_moved(word, at + 2 * width - to - 8), odd | opaque, others)

    return add


def _bytes_of_planes(layout: PackedLayout, to: int) -> Any:
    """Codes from bit ``to`` of the bytes on; from another one than 0 on, with their sign turned over."""
    low, high = layout.low, layout.high
    masked, start = (ptx.masked_xor, np.uint32(SIGNS)) if to else (ptx.masked_or, np.uint32(0))
    add_low = _plane(low, to, masked)
    add_high = _plane(high, to + low, masked) if high else add_low

    @inlined
    def unpack(words: Any, sixteen: Any, a: Any, at: Any, opaque: Any) -> None:
        for side in range(2):
            word = add_low(words, 0, 4 * sixteen + side, start, opaque)
            if high:
                word = add_high(words, low, 4 * sixteen + side, word, opaque)
            a[at + side] = int32(word)

    return unpack


def _whole_bytes(layout: PackedLayout) -> Any:
    """Codes of eight bits as they are, or levels that byte permutations find four at a time."""
    permute, levels = ptx.permute, bool(layout.levels)
    find = _finder(layout.levels or (0,), "int8")
    rows = (ZIPPED_LOW, ZIPPED_HIGH) if levels else (0x6240, 0x7351)

    @inlined
    def unpack(words: Any, sixteen: Any, a: Any, at: Any, opaque: Any) -> None:
        if levels:
            within = words[sixteen] & 0x77777777
            third = words[sixteen] >> 1 & 0x44444444 | 0x32103210
            (first, _), (second, _) = find(within, third), find(within >> 16, third >> 16)
        else:
            first, second = words[2 * sixteen], words[2 * sixteen + 1]
        a[at] = int32(permute(first, second, uint32(rows[0])))
        a[at + 1] = int32(permute(first, second, uint32(rows[1])))

    return unpack


def _lowered(layout: PackedLayout) -> Any:
    """Raised codes, less the lowest one's size: from a byte with its sign set nothing is borrowed."""
    raised, less = byte_unpacker(layout), np.uint32(-layout.lowest * 0x01010101)

    @inlined
    def unpack(words: Any, sixteen: Any, a: Any, at: Any, opaque: Any) -> None:
        raised(words, sixteen, a, at, opaque)
        for side in range(2):
            word = uint32(uint32(uint32(a[at + side]) | uint32(SIGNS)) - less)
            a[at + side] = int32(word ^ uint32(SIGNS))

    return unpack
