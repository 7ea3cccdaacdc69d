"""A lane's words of a fragment of 4-bit floats as operands of ``mma`` that takes such floats with scales.

In a lane's word of 16 columns the four floats of each half lie in parts, as codes.py wants them (pack.py):

    bit   15    14    13   12    11, 10   9     8 … 6   5 … 3   2 … 0
          s r0  s r3  m r3 s r1  e r3     s r2  em r0   em r1   em r2      s sign, e exponent, m mantissa

Registers r0 and r2 are row g, r1 and r3 row g + 8; the half says which column of a pair. Each of these parts
goes to its place with one shift and one ``lop3``.

As *bytes* they are floats e4m3: their exponent and mantissa where those of an e4m3 end, which is the number
times 2**-6, exact. The bytes of a word are columns 4 t, 4 t + 2, 4 t + 1, 4 t + 3 of its 16.

As *nibbles* eight are a word, columns 8 t + 2, 0, 6, 4, 3, 1, 7, 5 of 32: those of words of two lanes, so
that each lane has columns of one run of 16.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from .codes import word_loader
from .layout import PackedLayout
from .scales import number_loader

BOTH = 0x00010001  # a bit in each half
RAISED = 6  # what the exponent of a float as a byte is too low by
Move = tuple[int, int]  # bits down, or up where below zero; mask in a half afterwards
BYTES: tuple[tuple[Move, ...], ...] = (  # of row g, and of row g + 8
    ((8, 0x0080), (4, 0x001C), (-6, 0x8000), (-10, 0x1C00)),
    ((5, 0x0080), (1, 0x001C), (-1, 0x9800), (3, 0x0400)),
)
NIBBLES: tuple[tuple[Move, ...], ...] = (  # the same in the low byte of each half
    ((0, 0x0007), (6, 0x0008), (2, 0x0070), (8, 0x0080)),
    ((11, 0x0008), (9, 0x0006), (13, 0x0001), (-1, 0x0070), (5, 0x0080)),
)
UPPER = tuple(tuple((by - 8, mask << 8) for by, mask in moves) for moves in NIBBLES)


def serves(layout: PackedLayout) -> bool:
    """True for layouts whose codes are floats of four bits."""
    return layout.fp4


def _placer(moves: tuple[Move, ...]) -> Any:
    """The device function (word, others) that puts parts of a word in place, beside what is there."""
    (by, bits), *rest = moves
    mask, masked_or = np.uint32(bits * BOTH), ptx.masked_or
    below: Any = _placer(tuple(rest)) if rest else None

    @inlined
    def last(word: Any, others: Any) -> Any:
        return masked_or(word >> uint32(by) if by >= 0 else uint32(word << uint32(-by)), mask, others)

    @inlined
    def put(word: Any, others: Any) -> Any:
        return below(word, last(word, others))

    return put if rest else last


@cache
def byte_codes(layout: PackedLayout) -> Any:
    """The device function (at, lane) for the bytes of a fragment: eight words, as intrinsics/scaled_runs.py
    wants them.
    """
    load, row, other_row, bits = word_loader(layout), _placer(BYTES[0]), _placer(BYTES[1]), layout.bits

    @inlined
    def step(word: Any) -> Any:
        return row(word, uint32(0)), other_row(word, uint32(0))

    @inlined
    def codes(at: Any, lane: Any) -> Any:
        words = cuda.local.array(bits, uint32)
        load(at, lane, words)
        return step(words[0]) + step(words[1]) + step(words[2]) + step(words[3])

    return codes


@cache
def power_word(layout: PackedLayout) -> Any:
    """The device function (at, lane) for a lane's powers of two: of row g, in odd lanes of row g + 8."""
    load, count = number_loader(layout), layout.half_words + layout.sub_words

    @inlined
    def word(at: Any, lane: Any) -> Any:
        words = cuda.local.array(count, uint32)
        load(at, lane, words)
        return uint32(words[0] >> uint32((lane & uint32(1)) << uint32(4)))

    return word


# --- as nibbles -----------------------------------------------------------------------------------


@cache
def nibble_codes(layout: PackedLayout) -> Any:
    """The device function (at, lane) for the nibbles of a fragment: four words."""
    load, bits, low, high = word_loader(layout), layout.bits, NIBBLES, UPPER
    row, other_row, row_above, other_above = (
        _placer(low[0]),
        _placer(low[1]),
        _placer(high[0]),
        _placer(high[1]),
    )

    @inlined
    def of_both(a: Any, b: Any) -> Any:
        return row_above(b, row(a, uint32(0))), other_above(b, other_row(a, uint32(0)))

    @inlined
    def codes(at: Any, lane: Any) -> Any:
        first = uint32(uint32(lane & uint32(28)) | uint32(uint32(lane & uint32(1)) << uint32(1)))
        a, b = cuda.local.array(bits, uint32), cuda.local.array(bits, uint32)
        load(at, first, a)
        load(at, uint32(first | uint32(1)), b)
        odd = uint32(lane & uint32(2)) != uint32(0)  # runs of 16: this lane's is the second of two
        low = of_both(a[1] if odd else a[0], b[1] if odd else b[0])
        return low + of_both(a[3] if odd else a[2], b[3] if odd else b[2])

    return codes


@cache
def float_word(layout: PackedLayout) -> Any:
    """The device function (at, lane) for a lane's word of small floats: of row g, in odd lanes of row g + 8.

    The byte 0x7F is 0, as in ggml. The sign is ignored; 0xFF, which no encoder writes, is NaN.
    """
    load, count = number_loader(layout), layout.half_words + layout.sub_words

    @inlined
    def word(at: Any, lane: Any) -> Any:
        words = cuda.local.array(count, uint32)
        load(at, lane, words)
        bytes_of_row = words[1] if uint32(lane & uint32(1)) != uint32(0) else words[0]
        low = uint32(bytes_of_row & uint32(0x7F7F7F7F))
        none = uint32(uint32(low + uint32(0x01010101)) & uint32(~bytes_of_row & uint32(0x80808080)))
        return uint32(low - uint32(none - uint32(none >> uint32(7))))

    return word
