"""Device functions that make a fragment's scales and offsets of its halves and bytes, exact in float32.

Every lane makes the scales of rows g and g + 8 with few instructions: a byte becomes a float by being put
where a float has such bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32
from .layout import PackedLayout


@cache
def scale_loader(layout: PackedLayout) -> Any:
    """The device function that loads a lane's scales: those of row g, then of row g + 8, each followed by
    its offsets.
    """
    count, load_numbers = layout.half_words + layout.sub_words, number_loader(layout)
    value = scale_value(layout)
    runs, scales, kinds = layout.runs, layout.scales, 1 + layout.has_offset

    @inlined
    def load(at: Any, lane: Any, values: Any) -> None:
        words = cuda.local.array(count, uint32)
        load_numbers(at, lane, words)
        for side in range(2):
            for part in range(kinds):
                for run in range(runs):
                    values[side * scales + part * runs + run] = value(words, side, part, run)

    return load


@cache
def run_scale_loader(layout: PackedLayout) -> Any:
    """The device function that loads the scales of one run, of rows g and g + 8; then their offsets."""
    count, load_numbers = layout.half_words + layout.sub_words, number_loader(layout)
    both = _small_floats() if layout.scale == "small_float" else of_both_rows(scale_value(layout))
    blocks, halves_at, half_stride = layout.blocks, layout.halves_at, layout.half_stride
    kinds, take4, own_halves = 1 + layout.has_offset, ptx.take4, layout.blocks > 1 and layout.halves > 0

    @inlined
    def load(at: Any, lane: Any, run: Any, values: Any) -> None:
        words = cuda.local.array(count, uint32)
        if own_halves:
            here = at + halves_at + (lane >> 2) * half_stride + run * 4
            for part in range(kinds):
                words[part * blocks] = take4(here + uint32(4 * part * blocks))
            run = uint32(0)
        else:
            load_numbers(at, lane, words)
        for part in range(kinds):
            values[2 * part], values[2 * part + 1] = both(words, part, run)

    return load


def of_both_rows(value: Any) -> Any:
    """The device function for a ``scale_value`` of rows g and g + 8."""

    @inlined
    def both(words: Any, part: Any, run: Any) -> Any:
        return value(words, 0, part, run), value(words, 1, part, run)

    return both


@cache
def number_loader(layout: PackedLayout, to: int = 0) -> Any:
    """The device function that loads the words with halves, then with bytes, of rows g and g + 8, as words
    from ``to`` on.
    """
    halves, subs = layout.half_words, layout.sub_words
    halves_at, half_stride, subs_at, sub_stride = (
        layout.halves_at, layout.half_stride, layout.subs_at, layout.sub_stride
    )  # fmt: skip
    load_all, load_halves, load_subs = word_taker(halves + subs), word_taker(halves), word_taker(subs)
    interleaved = layout.interleaved

    @inlined
    def load(at: Any, lane: Any, words: Any) -> None:
        g = lane >> 2
        if interleaved:
            load_all(at + halves_at + g * half_stride, words, to)
        else:
            load_halves(at + halves_at + g * half_stride, words, to)
            load_subs(at + subs_at + g * sub_stride, words, to + halves)

    return load


@cache
def word_taker(count: int) -> Any:
    """The device function that loads 1, 2 or 4 words from shared memory."""
    take4, take8, take16 = ptx.take4, ptx.take8, ptx.take16

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


@cache
def scale_value(layout: PackedLayout) -> Any:
    """The device function that makes the scale (part 0) or offset (part 1) of a run of row g (side 0) or g
    + 8 (side 1).

    ``run`` may differ from lane to lane.
    """
    if layout.scale == "single":
        return _single()
    if layout.scale == "power":
        return _power(layout)
    if layout.scale == "small_float":
        return _small_float(layout)
    return _product(layout) if layout.subs else _half(layout)


def _half(layout: PackedLayout) -> Any:
    blocks, runs_per_block = layout.blocks, layout.runs // layout.blocks
    half_value, minus = ptx.half_value, layout.sign < 0

    @inlined
    def value(words: Any, side: Any, part: Any, run: Any) -> Any:
        word = words[part * blocks + run // runs_per_block] if blocks > 1 else words[part]
        half = half_value(word >> 16 if side else word & 0xFFFF)
        return -half if minus and part else half

    return value


def _product(layout: PackedLayout) -> Any:
    """Half times byte: behind the exponent of 2**15 a byte is worth its own value."""
    runs, halves, nibbles = layout.runs, layout.half_words, layout.nibbles
    narrow = layout.subs * runs == 2
    unit, scaled = np.float32(layout.unit), layout.unit != 1
    excess, none = np.float32(2.0**15 + layout.sub_zero), np.float32(2.0**15)
    half_value, float_of, permute, mul = ptx.half_value, ptx.float_of, ptx.permute, ptx.mul
    assert layout.sign == 1

    @inlined
    def value(words: Any, side: Any, part: Any, run: Any) -> Any:
        word = words[part]
        half = half_value(word >> 16 if side else word & 0xFFFF)
        if scaled:
            half = half * unit
        word = words[halves] if narrow else words[halves + side]
        byte = uint32(run) + uint32((2 * side if narrow else 0) + (0 if nibbles else part * runs))
        if nibbles:
            word = word >> uint32(4 * part) & 0x0F0F0F0F
        number = float_of(permute(word, uint32(0x47000000), 0x7404 + byte * 16))
        return mul(half, number - (none if part else excess))

    return value


def _power(layout: PackedLayout) -> Any:
    """Powers of two from 2**-128 on: the exponent is one less, except in the two subnormal ones."""
    permute, float_of = ptx.permute, ptx.float_of_int_bits
    assert layout.subs * layout.runs == 2

    @inlined
    def value(words: Any, side: Any, part: Any, run: Any) -> Any:
        e = int32(permute(words[0], uint32(0), uint32(0x4440 + 2 * side) + uint32(run)))
        subnormal, normal = int32((e << 21) + 0x200000), int32((e << 23) - 0x800000)
        return float_of(max(subnormal, normal))

    return value


def _small_float(layout: PackedLayout) -> Any:
    """Floats of four bits of exponent and three of mantissa: placed where a float32 has these bits, 2**119
    too low.

    0x7F is 0; the sign is ignored.
    """
    far, float_of, mul = np.float32(2.0**119), ptx.float_of, ptx.mul
    assert layout.subs * layout.runs == 4

    @inlined
    def value(words: Any, side: Any, part: Any, run: Any) -> Any:
        word = words[side]
        special = (word & 0x7F7F7F7F) + 0x01010101 & ~word & 0x80808080
        word = uint32(word + (special >> 7) - special)
        bits = word >> uint32(8 * run) << 20 & 0x07F00000
        return mul(float_of(bits), far)

    return value


def _small_floats() -> Any:
    """The small floats of rows g and g + 8, side by side in one word."""
    far, float_of, mul, permute = np.float32(2.0**119), ptx.float_of, ptx.mul, ptx.permute

    @inlined
    def both(words: Any, part: Any, run: Any) -> Any:
        word = permute(words[0], words[1], 0x0400 + uint32(run) * 0x0101)
        low = word & 0x007F007F
        special = low + 0x00010001 & ~word & 0x00800080
        low = uint32(low + (special >> 7) - special)
        a, b = uint32(low << 20), low >> 16 << 20
        return mul(float_of(a), far), mul(float_of(b), far)

    return both


def _single() -> Any:
    """One float32 for a whole row, kept as two halves."""
    permute, float_of = ptx.permute, ptx.float_of

    @inlined
    def value(words: Any, side: Any, part: Any, run: Any) -> Any:
        return float_of(permute(words[0], words[1], uint32(0x7632) if side else uint32(0x5410)))

    return value
