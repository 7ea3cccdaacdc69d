"""Packed weights whose columns meet activations in their natural order, so that nothing orders those before.

In the order of pack.py lane 4 g + t has columns 4 t … 4 t + 3 of each 16: pairs 2 t and 2 t + 1. In the
natural order it needs pairs t and t + 4, which lanes t / 2 and t / 2 + 2 have, each its pair t % 2:

    pairs of lane   0      1      2      3
    as packed       0, 1   2, 3   4, 5   6, 7
    natural         0, 4   1, 5   2, 6   3, 7

So a lane loads the words of both and picks one pair of each. Scales do not depend on the columns of a step.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from .codes import word_loader
from .layout import PackedLayout
from .scales import number_loader

AS_PACKED, SECOND_WORD = 0x3210, 0x7654  # picks of bf16x2.permute


def serves(layout: PackedLayout) -> bool:
    """True where pairs can be picked; floats of four bits have theirs in pieces."""
    return not layout.fp4


@cache
def lane_order(layout: PackedLayout) -> Any:
    """The device function for the order of a lane's columns: the two lanes whose words it loads, and what to
    pick of them. ``natural``: else all is as it was packed.
    """
    from_bytes = layout.low == 8
    picks, step = (0x5410, 0x2222) if layout.levels else (0x6240, 0x1111)
    if from_bytes:
        picks, step = AS_PACKED, 0x4444
    others = SECOND_WORD if from_bytes else AS_PACKED

    @inlined
    def order(lane: Any, natural: Any) -> Any:
        first, second, by, rest = lane, lane, uint32(0), uint32(0)
        pick, other = uint32(AS_PACKED), uint32(others)
        if natural:
            odd = uint32(lane & uint32(1))
            first = uint32(uint32(lane & uint32(28)) | uint32(uint32(lane >> uint32(1)) & uint32(1)))
            second = uint32(first | uint32(2))
            pick = uint32(uint32(picks) + uint32(odd * uint32(step)))
            other, by = pick, uint32(odd << uint32(1))
            rest = uint32(uint32(2) - by)
        return first, second, pick, other, by, rest

    return order


@cache
def natural_loader(layout: PackedLayout) -> Any:
    """The device function that loads a lane's words and scales of a fragment in a ``lane_order``."""
    low, high, bits = layout.low, layout.high, layout.bits
    numbers = layout.half_words + layout.sub_words
    load_words, load_numbers, permute = word_loader(layout), number_loader(layout), bf16x2.permute
    masked_or = ptx.masked_or

    @inlined  # of few bits: low ones of the first word, high ones of the second
    def picked(a: Any, b: Any, by: Any, rest: Any, mask: Any) -> Any:
        upper = uint32(uint32(b << rest) & uint32(~mask & 0xFFFFFFFF))
        return masked_or(uint32(a >> by), uint32(mask), upper)

    @inlined
    def load(at: Any, lane: Any, order: Any, words: Any) -> None:
        first, second, pick, other, by, rest = order
        a, b = cuda.local.array(bits, uint32), cuda.local.array(bits, uint32)
        loaded = cuda.local.array(numbers, uint32)
        load_words(at, first, a)
        load_words(at, second, b)
        load_numbers(at, lane, loaded)
        if low == 8:
            for i in range(0, 8, 2):
                words[i] = permute(a[i], a[i + 1], pick)
                words[i + 1] = permute(b[i], b[i + 1], other)
        elif low == 4:
            for i in range(4):
                words[i] = permute(a[i], b[i], pick)
        else:
            for i in range(2):
                words[i] = picked(a[i], b[i], uint32(by << uint32(1)), uint32(rest << uint32(1)), 0x0F0F0F0F)
        if high == 2:
            for i in range(low, low + 2):
                words[i] = picked(a[i], b[i], uint32(by << uint32(1)), uint32(rest << uint32(1)), 0x0F0F0F0F)
        elif high == 1:
            words[low] = picked(a[low], b[low], by, rest, 0x33333333)
        for i in range(numbers):
            words[bits + i] = loaded[i]

    return load
