"""A lane's weights as pairs of rows in one column, where ``mma`` sums over rows: bfloat16, scale included.

A lane has codes of rows g and g + 8. Its bytes, or its bfloat16, of the two rows are put side by side by one
permutation. A pair of scales, as weights.py makes it, then multiplies each pair of codes: one fma, or two
where there is an offset or a scale of any size, with the roundings of weights.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..intrinsics import bf16x2
from ..intrinsics.assembly import instruction, u32
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32
from .byte_codes import byte_unpacker
from .codes import step_unpacker
from .layout import PackedLayout
from .weights import AROUND, LAST_PLACE, NONE, RAISED, SHRUNK, fragment_weights, lowest_code, scale_pairs

COLUMN_OF_BYTE = (0, 2, 1, 3)  # packed/byte_codes.py
LOW_HALVES, HIGH_HALVES = np.uint32(0x5410), np.uint32(0x7632)


@instruction("prmt.b32 $0, $1, $2, $3;", u32, u32, u32, u32)
def permute_or_zero(a: Any, b: Any, picks: Any) -> Any:
    """Four bytes out of eight, all below 128: nibble i of ``picks`` names one, or from 8 on a zero."""
    eight = int(a) | int(b) << 32
    wanted = [int(picks) >> 4 * i & 15 for i in range(4)]
    return np.uint32(sum((eight >> 8 * pick & 255) << 8 * i for i, pick in enumerate(wanted) if pick < 8))


class RowPairs(NamedTuple):
    """Device functions that make a lane's pairs of a fragment."""

    words: int  # that a lane loads
    load: Any  # (address of the fragment, lane, words)
    scales: Any  # (words, run, opaque) -> the pairs that multiply and add
    unpack: Any  # (words, s, w, at, multiply, add, opaque): the pairs of the four columns of step s
    factor: float  # multiplies the sums in the end


@cache
def row_pairs(layout: PackedLayout) -> RowPairs:
    """The functions for a format's layout."""
    count, load, _, factor = fragment_weights(layout)
    codes = _levels(layout) if layout.levels else _bytes() if layout.low == 8 else _bits(layout)
    scales, weigh = _scales(layout), weigher(layout)

    @inlined
    def unpack(words: Any, s: Any, w: Any, at: Any, multiply: Any, add: Any, opaque: Any) -> None:
        codes(words, s, w, at, opaque)
        for i in range(4):
            w[at + i] = weigh(w[at + i], multiply, add)

    return RowPairs(count, load, scales, unpack, factor)


def _bits(layout: PackedLayout) -> Any:
    """Codes raised by the lowest one, in the low byte of a bfloat16 without other bits."""
    unpack_bytes, c = byte_unpacker(layout), COLUMN_OF_BYTE
    picks = tuple(np.uint32(0x8080 + byte + (4 + byte) * 0x100) for byte in range(4))

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        rows = cuda.local.array(2, int32)
        unpack_bytes(words, s, rows, 0, opaque)
        for byte in range(4):
            w[at + c[byte]] = permute_or_zero(uint32(rows[0]), uint32(rows[1]), picks[byte])

    return codes


def _bytes() -> Any:
    """Bytes, raised by 128: a word has two columns of both rows."""
    permute = bf16x2.permute

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        for i in range(2):
            word = words[2 * s + i] ^ uint32(0x80808080)
            w[at + 2 * i] = permute(word, uint32(0), uint32(0x4140))
            w[at + 2 * i + 1] = permute(word, uint32(0), uint32(0x4342))

    return codes


def _levels(layout: PackedLayout) -> Any:
    """The looked-up levels, as bfloat16."""
    unpack_step, permute = step_unpacker(layout), bf16x2.permute

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        level = cuda.local.array(4, uint32)
        unpack_step(words, s, level, opaque)
        for i in range(2):
            w[at + 2 * i] = permute(level[2 * i], level[2 * i + 1], LOW_HALVES)
            w[at + 2 * i + 1] = permute(level[2 * i], level[2 * i + 1], HIGH_HALVES)

    return codes


def _is_one_step(layout: PackedLayout) -> bool:
    return not layout.levels and layout.scale == "half" and not layout.has_offset


def _scales(layout: PackedLayout) -> Any:
    pairs, terms = scale_pairs(layout), multipliers(layout)

    @inlined
    def scales(words: Any, run: Any, opaque: Any) -> Any:
        scale, offset = pairs(words, run, opaque)
        return terms(scale, offset)

    return scales


@cache
def multipliers(layout: PackedLayout) -> Any:
    """The device function for the pairs that multiply codes and are added, of pairs of scales and offsets."""
    fma, large = bf16x2.fma, np.uint32(bf16x2.pair(2.0**AROUND))
    raised = np.uint32(bf16x2.pair(2.0 ** (LAST_PLACE - SHRUNK)))
    zero = np.uint32(bf16x2.pair(lowest_code(layout) * 2.0**-SHRUNK))
    has_offset = layout.has_offset

    @inlined
    def terms_of_codes(scale: Any, offset: Any) -> Any:
        return fma(scale, raised, NONE), fma(scale, zero, NONE)

    @inlined
    def terms_of_values(scale: Any, offset: Any) -> Any:
        return (fma(scale, large, NONE), offset) if has_offset else (scale, NONE)

    return terms_of_codes if _is_one_step(layout) else terms_of_values


@cache
def weigher(layout: PackedLayout, shift: int = 0) -> Any:
    """The device function that makes weights of a pair of codes, which stand ``shift`` bits too high."""
    fma, most, lower = bf16x2.fma, np.uint32(bf16x2.pair(2.0 ** (RAISED - shift))), 2.0**-shift
    away = -layout.middle if layout.has_offset else lowest_code(layout)
    start, less = np.uint32(bf16x2.pair(away * 2.0**-AROUND)), np.uint32(bf16x2.pair(lower))

    @inlined
    def weigh(code: Any, multiply: Any, add: Any) -> Any:
        return fma(code, fma(multiply, less, NONE) if shift else multiply, add)

    @inlined
    def weigh_in_two(code: Any, multiply: Any, add: Any) -> Any:
        return fma(fma(code, most, start), multiply, add)

    return weigh if layout.levels or _is_one_step(layout) else weigh_in_two
