"""A lane's words of a fragment as operands of ``mma`` of bytes: codes less the lowest one, or as they are.

A step of 16 columns gives two words: of row g and of row g + 8. Their four bytes are columns 4 t, 4 t + 2,
4 t + 1, 4 t + 3: so those of 4-bit codes need one shift and one mask. Codes of fewer bits than eight stay
raised by the lowest code; looked up ones and bytes are the codes themselves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import int32, uint32
from .layout import PackedLayout

BOTH = 0x00010001  # a bit in each half


def serves(layout: PackedLayout) -> bool:
    """True for layouts whose codes can be bytes: all but floats of four bits, whose bits lie otherwise."""
    return not layout.fp4


def lowest_byte(layout: PackedLayout) -> int:
    """The code of a byte of 0: what codes that stay raised are to be lowered by."""
    return 0 if layout.levels else layout.lowest


@cache
def byte_unpacker(layout: PackedLayout) -> Any:
    """The device function (words, step, a, at, opaque) that makes a step's words of rows g and g + 8."""
    if layout.levels:
        return _from_table(layout.levels)
    return _from_bytes() if layout.low == 8 else _from_bits(layout)


@inlined
def _moved(word: Any, by: Any) -> Any:
    """A word whose bits move down, or up where ``by`` is below zero."""
    return word >> uint32(by) if by > 0 else uint32(word << uint32(-by))


def _plane(width: int, to: int) -> Any:
    """The device function that adds one plane of codes, ``width`` bits each, at bit ``to`` of the bytes."""
    bits = (1 << width) - 1
    even, odd = np.uint32((bits << to) * BOTH), np.uint32((bits << to + 8) * BOTH)
    masked_or, at_once = ptx.masked_or, 2 * width == 8
    all_bytes = np.uint32(even | odd)

    @inlined
    def add(words: Any, first: Any, i: Any, others: Any, opaque: Any) -> Any:
        word, at = words[first + i * width // 16], i * width % 16
        if at_once:  # the bits of the odd bytes lie eight above those of the even ones
            return masked_or(_moved(word, at - to), all_bytes | opaque, others)
        others = masked_or(_moved(word, at - to), even | opaque, others)
        return masked_or(_moved(word, at + 2 * width - to - 8), odd | opaque, others)

    return add


def _from_bits(layout: PackedLayout) -> Any:
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


def _from_bytes() -> Any:
    permute = bf16x2.permute

    @inlined
    def unpack(words: Any, step: Any, a: Any, at: Any, opaque: Any) -> None:
        a[at] = int32(permute(words[2 * step], words[2 * step + 1], uint32(0x6240)))
        a[at + 1] = int32(permute(words[2 * step], words[2 * step + 1], uint32(0x7351)))

    return unpack


def _from_table(levels: tuple[int, ...]) -> Any:
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
        within = words[step] & uint32(0x77777777)
        third = words[step] >> uint32(1) & uint32(0x44444444) | uint32(0x32103210)
        low, high = four(within, third), four(within >> uint32(16), third >> uint32(16))
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


def _signed_plane(width: int, to: int) -> Any:
    """As :func:`_plane`, of codes whose highest bit becomes the sign: it is turned over."""
    bits = (1 << width) - 1
    even, odd = np.uint32((bits << to) * BOTH), np.uint32((bits << to + 8) * BOTH)
    masked_xor, at_once = ptx.masked_xor, 2 * width == 8
    all_bytes = np.uint32(even | odd)

    @inlined
    def add(words: Any, first: Any, i: Any, others: Any, opaque: Any) -> Any:
        word, at = words[first + i * width // 16], i * width % 16
        if at_once:
            return masked_xor(_moved(word, at - to), all_bytes | opaque, others)
        others = masked_xor(_moved(word, at - to), even | opaque, others)
        return masked_xor(_moved(word, at + 2 * width - to - 8), odd | opaque, others)

    return add


def _from_signed_bits(layout: PackedLayout) -> Any:
    low, high, free = layout.low, layout.high, 8 - layout.bits
    add_low = _signed_plane(low, free)
    add_high = _signed_plane(high, free + low) if high else add_low

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
