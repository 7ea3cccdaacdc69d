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

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32
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
            rest = masked_or(w, uint32(0x007F007F) | opaque, PLUS_128)
            a[r] = fma(rest, ONES, masked_or(w, uint32(0x00800080) | opaque, MINUS_128))

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


def _from_table(levels: tuple[int, ...]) -> Any:
    """Codes that are looked up: byte permutations find four at a time, low bytes and high bytes in two
    steps each.
    """
    bits = np.zeros(16, np.uint32)
    bits[: len(levels)] = np.array(levels, np.float32).view(np.uint32) >> 16
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


def buffer_sizes(layout: PackedLayout) -> tuple[int, int]:
    """The numbers of words and of scales that a lane holds of a fragment."""
    return layout.bits, 2 * layout.scales
