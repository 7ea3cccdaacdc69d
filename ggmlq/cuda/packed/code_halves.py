"""A lane's words of a fragment as operands of ``mma`` on float16: codes as pairs of halves, exact.

As codes.py does for bfloat16. A half has three bits more: the last place of 1024 is worth one. So a plane of
four bits takes two registers out of each byte without a shift, codes of eight bits need one instruction to
get there, and what is looked up are the halves of the levels.

Codes of some types are exact even times the sub-scales of their runs, integers too: those of q2_K, q3_K, q4_K
and q5_K have at most eleven bits then. So one scale is left for all runs of a block, and the instruction that
takes the 1024 off multiplies as well (*folded*).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32
from .layout import PackedLayout

PLUS_1024 = np.uint32(halves.pair(1024))


@cache
def half_unpacker(layout: PackedLayout) -> Any:
    """The device function that makes the four registers of a step from a lane's words."""
    if layout.fp4:
        return _from_fp4()
    if layout.levels:
        return _from_table(layout.levels)
    if layout.low == 8:
        return _from_bytes()
    return _from_bits(layout)


def _from_bits(layout: PackedLayout) -> Any:
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


def _from_bytes() -> Any:
    """Codes of eight bits: with the sign turned a byte is the code + 128."""
    sub, masked_xor, raised = halves.sub, ptx.masked_xor, np.uint32(halves.pair(1024 + 128))

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            w = words[2 * s + r // 2] >> uint32(8 * (r % 2))
            a[r] = sub(masked_xor(w, uint32(0x00FF00FF) | opaque, raised), raised)

    return unpack_step


def _from_fp4() -> Any:
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


def _from_table(levels: tuple[int, ...]) -> Any:
    """Codes that are looked up, as codes.py does: byte permutations find four at a time."""
    bits = np.zeros(16, np.uint16)
    bits[: len(levels)] = np.array(levels, np.float16).view(np.uint16)
    low, high = (bits & 255).astype(np.uint8).view(np.uint32), (bits >> 8).astype(np.uint8).view(np.uint32)
    l0, l1, l2, l3 = (np.uint32(word) for word in low)
    h0, h1, h2, h3 = (np.uint32(word) for word in high)
    permute, wide = bf16x2.permute, len(levels) > 8

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        within = words[s] & uint32(0x77777777)
        third = words[s] >> uint32(1) & uint32(0x44444444) | uint32(0x32103210)
        for i in range(2):
            at, pick = within >> uint32(16 * i), third >> uint32(16 * i)
            lows, highs = permute(l0, l1, at), permute(h0, h1, at)
            if wide:
                lows = permute(lows, permute(l2, l3, at), pick)
                highs = permute(highs, permute(h2, h3, at), pick)
            a[2 * i] = permute(lows, highs, uint32(0x5140))
            a[2 * i + 1] = permute(lows, highs, uint32(0x7362))

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
