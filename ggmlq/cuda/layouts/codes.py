"""A lane's words of a fragment as operands of ``mma``: codes as pairs of bfloat16, exact.

The bits of a code are put under the exponent of 128, where the last place of a bfloat16 is worth one: no
conversion is needed. One more instruction for two weights takes the 128 and the code's zero off again. Or
codes stay *raised*, by 128 less the lowest code, and that excess is taken off the sums (operand.py).

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

PLUS_128, MINUS_128 = np.uint32(bf16x2.pair(128)), np.uint32(bf16x2.pair(-128))
ONES = bf16x2.ONES


@cache
def word_loader(layout: PackedLayout) -> Any:
    """The device function that loads a lane's words of the fragment at an address of shared memory."""
    low, high, high_at = layout.low, layout.high, layout.high_at
    take4, take8, take16 = bf16x2.take4, bf16x2.take8, ptx.take16

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


def can_stay_raised(layout: PackedLayout) -> bool:
    """True where codes can stay raised: codes of eight bits and codes that are looked up cannot."""
    return not layout.levels and layout.low != 8


def excess_pair(layout: PackedLayout) -> int:
    """The pair of bfloat16 to add for each activation where no offset takes the excess off; 0 for none."""
    return bf16x2.pair(layout.lowest - 128) if can_stay_raised(layout) and not layout.has_offset else 0


@cache
def step_unpacker(layout: PackedLayout, raised: bool = False) -> Any:
    """The device function that makes the four registers of a step from a lane's words."""
    if layout.fp4:
        return _from_fp4()
    if layout.levels:
        return _from_table(layout.levels)
    if layout.low == 8:
        return _from_bytes()
    return _from_bits(layout, raised)


def _from_bits(layout: PackedLayout, raised: bool) -> Any:
    start = np.uint32(bf16x2.pair(layout.lowest - 128))
    fma, low, high, places = bf16x2.fma, layout.low, layout.high, 16 // layout.low
    mask = np.uint32(0x000F000F if low == 4 else 0x00030003)
    above, masked_or = np.uint32((0x00030003 if high == 2 else 0x00010001) << low), ptx.masked_or

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            i = 4 * s + r
            u = masked_or(words[i // places] >> uint32(low * (i % places)), mask | opaque, PLUS_128)
            if high:  # one shift puts its bits in place
                bits, by = words[low + i * high // 16], i * high % 16 - low
                u = masked_or(bits >> uint32(by) if by > 0 else uint32(bits << uint32(-by)), above, u)
            a[r] = u if raised else fma(u, ONES, start)

    return unpack_step


def _from_bytes() -> Any:
    """Codes of eight bits. The sign is worth -128: it turns the 128 to be taken off into 256."""
    fma, masked_or = bf16x2.fma, ptx.masked_or

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            rest = masked_or(w, 0x007F007F | opaque, PLUS_128)
            a[r] = fma(rest, ONES, masked_or(w, 0x00800080 | opaque, MINUS_128))

    return unpack_step


def _from_fp4() -> Any:
    """Floats of four bits: their exponent and mantissa at the end of those of a bfloat16, which is the
    number × 2**-127.
    """
    fma, large, none = bf16x2.fma, np.uint32(bf16x2.pair(2.0**127)), np.uint32(bf16x2.pair(-0.0))

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        w = words[s]
        for r in range(3):
            a[r] = fma(w << uint32(3 * r) & uint32(0x81C081C0), large | opaque, none)
        magnitude = w >> uint32(3) & uint32(0x01800180) | w >> uint32(7) & uint32(0x00400040)
        a[3] = fma(w << uint32(1) & uint32(0x80008000) | magnitude, large | opaque, none)

    return unpack_step


def _from_table(levels: tuple[int, ...], half: bool = False) -> Any:
    """Codes that are looked up, as bfloat16 or, ``half``, float16: byte permutations find four at a time, low
    bytes and high bytes in two steps each.
    """
    bits, values = np.zeros(16, np.uint16), np.array(levels, np.float32)
    bits[: len(levels)] = values.astype(np.float16).view(np.uint16) if half else values.view(np.uint32) >> 16
    low, high = (bits & 255).astype(np.uint8).view(np.uint32), (bits >> 8).astype(np.uint8).view(np.uint32)
    l0, l1, l2, l3 = (np.uint32(word) for word in low)
    h0, h1, h2, h3 = (np.uint32(word) for word in high)
    permute, wide = bf16x2.permute, len(levels) > 8

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        within = words[s] & 0x77777777
        third = words[s] >> 1 & 0x44444444 | 0x32103210
        for i in range(2):
            at, pick = within >> uint32(16 * i), third >> uint32(16 * i)
            lows, highs = permute(l0, l1, at), permute(h0, h1, at)
            if wide:
                lows = permute(lows, permute(l2, l3, at), pick)
                highs = permute(highs, permute(h2, h3, at), pick)
            a[2 * i] = permute(lows, highs, uint32(0x5140))
            a[2 * i + 1] = permute(lows, highs, uint32(0x7362))

    return unpack_step


def buffer_sizes(layout: PackedLayout) -> tuple[int, int]:
    """The numbers of words and of scales that a lane holds of a fragment."""
    return layout.bits, 2 * layout.scales


# A lane's words of a fragment as operands of ``mma`` on float16: codes as pairs of halves, exact.
#
# As codes.py does for bfloat16. A half has three bits more: the last place of 1024 is worth one. So a plane
# of four bits takes two registers out of each byte without a shift, codes of eight bits need one instruction
# to get there, and what is looked up are the halves of the levels.
#
# Codes of some types are exact even times the sub-scales of their runs, integers too: those of q2_K, q3_K,
# q4_K and q5_K have at most eleven bits then. So one scale is left for all runs of a block, and the
# instruction that takes the 1024 off multiplies as well (*folded*).


PLUS_1024 = np.uint32(halves.pair(1024))


@cache
def half_unpacker(layout: PackedLayout) -> Any:
    """The device function that makes the four registers of a step from a lane's words."""
    if layout.fp4:
        return _halves_from_fp4()
    if layout.levels:
        return _from_table(layout.levels, half=True)
    if layout.low == 8:
        return _halves_from_bytes()
    return _halves_from_bits(layout)


def _halves_from_bits(layout: PackedLayout) -> Any:
    low, high, places = layout.low, layout.high, 16 // layout.low
    fma, sub, masked_or = halves.fma, halves.sub, ptx.masked_or
    mask, upper_mask = np.uint32(0x000F000F if low == 4 else 0x00030003), np.uint32(0x00F000F0)
    above = np.uint32((0x00030003 if high == 2 else 0x00010001) << low)
    start = np.uint32(halves.pair(1024 - layout.lowest))
    lifted_start, sixteenth = np.uint32(halves.pair(layout.lowest - 64)), np.uint32(halves.pair(1 / 16))
    pairs = low == 4 and not high

    @inlined
    def unpack_pairs(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(0, 4, 2):
            w = words[s] >> uint32(4 * r)
            a[r] = sub(masked_or(w, mask | opaque, PLUS_1024), start)
            a[r + 1] = fma(masked_or(w, upper_mask | opaque, PLUS_1024), sixteenth, lifted_start)

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            i = 4 * s + r
            u = masked_or(words[i // places] >> uint32(low * (i % places)), mask | opaque, PLUS_1024)
            if high:  # one shift puts its bits in place
                bits, by = words[low + i * high // 16], i * high % 16 - low
                u = masked_or(bits >> uint32(by) if by > 0 else uint32(bits << uint32(-by)), above, u)
            a[r] = sub(u, start)

    return unpack_pairs if pairs else unpack_step


def _halves_from_bytes() -> Any:
    """Codes of eight bits: with the sign turned a byte is the code + 128."""
    sub, masked_xor, raised = halves.sub, ptx.masked_xor, np.uint32(halves.pair(1024 + 128))

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            a[r] = sub(masked_xor(w, uint32(0x00FF00FF) | opaque, raised), raised)

    return unpack_step


def _halves_from_fp4() -> Any:
    """Floats of four bits: their exponent and mantissa at the end of the exponent of a half and before its
    mantissa, which is the number × 2**-15. codes.py has the places.
    """
    fma, masked_or = halves.fma, ptx.masked_or
    large, none = np.uint32(halves.pair(2.0**15)), np.uint32(halves.pair(-0.0))
    sign, rest = np.uint32(0x80008000), np.uint32(0x0E000E00)

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        w = words[s]
        for r in range(3):
            magnitude = w << uint32(3 * r + 3) & rest
            a[r] = fma(masked_or(w << uint32(3 * r), sign | opaque, magnitude), large | opaque, none)
        magnitude = w & uint32(0x0C000C00) | w >> uint32(4) & uint32(0x02000200)
        a[3] = fma(masked_or(w << uint32(1), sign | opaque, magnitude), large | opaque, none)

    return unpack_step


# --- codes times sub-scales ---------------------------------------------------------------------

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
    narrow, permute, sub = layout.subs * runs == 2, bf16x2.permute, halves.sub
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
    """The device function that makes the four registers of a step, codes times their run's sub-scales."""
    low, high, places = layout.low, layout.high, 16 // layout.low
    fma, sub, masked_or = halves.fma, halves.sub, ptx.masked_or
    mask, upper_mask = np.uint32(0x000F000F if low == 4 else 0x00030003), np.uint32(0x00F000F0)
    above = np.uint32((0x00030003 if high == 2 else 0x00010001) << low)
    start, none = np.uint32(halves.pair(1024 - layout.lowest)), np.uint32(halves.pair(-0.0))
    minus_1024, minus_64 = np.uint32(halves.pair(-1024)), np.uint32(halves.pair(-64))
    sixteenth, from_zero = np.uint32(halves.pair(1 / 16)), layout.lowest == 0

    @inlined
    def unpack_pairs(words: Any, s: Any, a: Any, opaque: Any, subs: Any) -> None:
        for r in range(0, 4, 2):
            w = words[s] >> uint32(4 * r)
            u, v = masked_or(w, mask | opaque, PLUS_1024), masked_or(w, upper_mask | opaque, PLUS_1024)
            a[r] = fma(u, subs[0], fma(subs[0], minus_1024, none))
            a[r + 1] = fma(v, fma(subs[1], sixteenth, none), fma(subs[1], minus_64, none))

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any, subs: Any) -> None:
        for r in range(4):
            i = 4 * s + r
            u = masked_or(words[i // places] >> uint32(low * (i % places)), mask | opaque, PLUS_1024)
            if high:  # one shift puts its bits in place
                bits, by = words[low + i * high // 16], i * high % 16 - low
                u = masked_or(bits >> uint32(by) if by > 0 else uint32(bits << uint32(-by)), above, u)
            if from_zero:
                a[r] = fma(u, subs[r % 2], fma(subs[r % 2], minus_1024, none))
            else:
                a[r] = fma(sub(u, start), subs[r % 2], none)

    return unpack_pairs if low == 4 and not high else unpack_step


# A lane's words of a fragment as operands of ``mma`` of bytes: codes less the lowest one, or as they are.
#
# A step of 16 columns gives two words: of row g and of row g + 8. Their four bytes are columns 4 t, 4 t + 2,
# 4 t + 1, 4 t + 3: so those of 4-bit codes need one shift and one mask. Codes of fewer bits than eight stay
# raised by the lowest code; looked up ones and bytes are the codes themselves.
BOTH = 0x00010001  # a bit in each half


def serves_bytes(layout: PackedLayout) -> bool:
    """True for layouts whose codes can be bytes: all but floats of four bits, whose bits lie otherwise."""
    return not layout.fp4


def lowest_byte(layout: PackedLayout) -> int:
    """The code of a byte of 0: what codes that stay raised are to be lowered by."""
    return 0 if layout.levels else layout.lowest


@cache
def byte_unpacker(layout: PackedLayout) -> Any:
    """The device function (words, step, a, at, opaque) that makes a step's words of rows g and g + 8."""
    if layout.levels:
        return _bytes_from_table(layout.levels)
    return _bytes_from_bytes() if layout.low == 8 else _bytes_from_bits(layout)


@inlined
def _moved(word: Any, by: Any) -> Any:
    """A word whose bits move down, or up where ``by`` is below zero."""
    return word >> uint32(by) if by > 0 else uint32(word << uint32(-by))


def _plane(width: int, to: int, masked: Any = ptx.masked_or) -> Any:
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


def _bytes_from_bits(layout: PackedLayout) -> Any:
    low, high = layout.low, layout.high
    add_low, add_high = _plane(low, 0), _plane(high or low, low)

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        for side in range(2):
            word = add_low(words, 0, 4 * step + side, uint32(0), opaque)
            if high:
                word = add_high(words, low, 4 * step + side, word, opaque)
            a[at + side] = int32(word)

    return unpack


def _bytes_from_bytes() -> Any:
    permute = bf16x2.permute

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        a[at] = int32(permute(words[2 * step], words[2 * step + 1], uint32(0x6240)))
        a[at + 1] = int32(permute(words[2 * step], words[2 * step + 1], uint32(0x7351)))

    return unpack


def _bytes_from_table(levels: tuple[int, ...]) -> Any:
    """Codes that are looked up: byte permutations find four at a time."""
    table = np.zeros(16, np.int8)
    table[: len(levels)] = levels
    l0, l1, l2, l3 = (np.uint32(word) for word in table.view(np.uint32))
    permute, wide = bf16x2.permute, len(levels) > 8

    @inlined
    def four(within: Any, third: Any) -> Any:
        low = permute(l0, l1, within)
        return permute(low, permute(l2, l3, within), third) if wide else low

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        within = words[step] & 0x77777777
        third = words[step] >> 1 & 0x44444444 | 0x32103210
        low, high = four(within, third), four(within >> 16, third >> 16)
        a[at] = int32(permute(low, high, uint32(0x5140)))
        a[at + 1] = int32(permute(low, high, uint32(0x7362)))

    return unpack


# --- codes with their sign ----------------------------------------------------------------------

SIGNS = 0x80808080


def byte_unit(layout: PackedLayout) -> int:
    """The number of bytes' units that a code counts: signed codes of few bits begin at the sign of a byte."""
    return 1 << 8 - layout.bits if _is_symmetric(layout) else 1


def _is_symmetric(layout: PackedLayout) -> bool:
    """True where the lowest code is the one with the sign alone."""
    return not layout.levels and layout.low < 8 and layout.lowest == -(1 << layout.bits - 1)


@cache
def signed_unpacker(layout: PackedLayout) -> Any:
    """As :func:`byte_unpacker`, of codes themselves, times ``byte_unit``."""
    if _is_symmetric(layout):
        return _from_signed_bits(layout)
    if layout.levels or layout.low == 8 or not layout.lowest:
        return byte_unpacker(layout)
    return _lowered(layout)


def _from_signed_bits(layout: PackedLayout) -> Any:
    low, high, free = layout.low, layout.high, 8 - layout.bits
    add_low = _plane(low, free, ptx.masked_xor)
    add_high = _plane(high, free + low, ptx.masked_xor) if high else add_low

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        for side in range(2):
            word = add_low(words, 0, 4 * step + side, uint32(SIGNS), opaque)
            if high:
                word = add_high(words, low, 4 * step + side, word, opaque)
            a[at + side] = int32(word)

    return unpack


def _lowered(layout: PackedLayout) -> Any:
    """Raised codes, less the lowest one's size: from a byte with its sign set nothing is borrowed."""
    raised, less = byte_unpacker(layout), np.uint32(-layout.lowest * 0x01010101)

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        raised(words, step, a, at, opaque)
        for side in range(2):
            word = uint32(uint32(uint32(a[at + side]) | uint32(SIGNS)) - less)
            a[at + side] = int32(word ^ uint32(SIGNS))

    return unpack
