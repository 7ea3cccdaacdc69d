"""A lane's weights of a fragment as ``wgmma`` takes them: pairs of bfloat16, the scale multiplied in.

    code    bits of a word, in the low byte of a bfloat16 without other bits: code × 2**-133
    weight  one fma of two: code × (scale × 2**104) + lowest × (scale × 2**-29)

A bfloat16 without an exponent is worth its last places, and so is one whose exponent is 1: its low byte is
a number as it stands. So no exponent is put above the code and no zero is taken off. The scale makes up for
2**-133 as far as its range allows; the sums are multiplied by the rest (``factor``). Both terms are exact
before they are added: a weight is rounded once, as ``(code - zero) × scale`` would be.

With an offset, or a scale of any size, it takes two fma: one for the code around its middle, one for scale
and offset, which is smaller then. Codes that are looked up are bfloat16 already.

Scales of rows g and g + 8 are the halves of one register, of which fma takes either.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..intrinsics import bf16x2, halves, ptx
from ..intrinsics.assembly import emit_in_place, emitted, f32, parts
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import PAIRS
from ..intrinsics.lane import from_lane
from ..intrinsics.language import cuda, float32, int32, types, uint32
from .codes import byte_unpacker, sixteen_unpacker, word_loader
from .layout import FRAGMENT_ROWS, PackedLayout
from .scales import number_loader, of_both_rows, run_scale_loader, scale_value

NONE = np.uint32(bf16x2.pair(-0.0))
# Powers of two: of a code as it stands; left to the sums, since scales of 2**23 × 2**104 are still finite.
LAST_PLACE, SHRUNK = 133, 29
RAISED, AROUND = 127, 6  # powers of two: the most that a code can be multiplied by, and the rest


class FragmentWeights(NamedTuple):
    """Device functions that make a lane's sixteen registers of weights from a fragment."""

    words: int  # that a lane loads
    load: Any  # (address of the fragment, lane, words)
    unpack: Any  # (words, registers, opaque): a zero of opaque_zero()
    factor: float  # multiplies the sums in the end


@cache
def fragment_weights(layout: PackedLayout) -> FragmentWeights:
    """The functions for a format's layout."""
    numbers = layout.half_words + layout.sub_words
    load_words, load_numbers = word_loader(layout), number_loader(layout, layout.bits)

    @inlined
    def load(at: Any, lane: Any, words: Any) -> None:
        load_words(at, lane, words)
        load_numbers(at, lane, words)

    if layout.levels:
        unpack, factor = _times_scales(layout, "bfloat16", layout), 0
    else:
        unpack = _codes_times_scales(layout)
        factor = SHRUNK if takes_one_fma(layout) else AROUND * (layout.scale != "half")
    return FragmentWeights(layout.bits + numbers, load, unpack, 2.0**factor)


def takes_one_fma(layout: PackedLayout) -> bool:
    """True where one fma makes two weights of their codes."""
    return not layout.levels and layout.scale == "half" and not layout.has_offset


def _codes_times_scales(layout: PackedLayout) -> Any:
    """Code times scale, less the zero times scale, in one fma. Or, in two, the code less its zero or its
    middle, 64 times too small, times the scale; with an offset times 64 scales, less the rest of the offset.
    """
    code, scales, sixteens_per_run = code_reader(layout), scale_pairs(layout), 4 // layout.runs
    one_fma, around = takes_one_fma(layout), layout.has_offset and layout.scale == "half"
    first, second = _multipliers(layout, LAST_PLACE - SHRUNK if one_fma else RAISED)
    away = -layout.middle if around else lowest_code(layout)
    zero = np.uint32(bf16x2.pair(away * 2.0 ** -(SHRUNK if one_fma else AROUND)))
    large = np.uint32(bf16x2.pair(2.0**AROUND))
    runs, fma, low, high = layout.runs, bf16x2.fma, bf16x2.fma_low, bf16x2.fma_high

    @inlined
    def unpack_in_one(words: Any, a: Any, opaque: Any) -> None:
        for run in range(runs):
            scale, _ = scales(words, run, opaque)
            one, other, less = fma(scale, first, NONE), fma(scale, second, NONE), fma(scale, zero, NONE)
            for i in range(4 * run * sixteens_per_run, 4 * (run * sixteens_per_run + sixteens_per_run), 4):
                a[i] = low(code(words, i, opaque), one, less)
                a[i + 1] = high(code(words, i + 1, opaque), one, less)
                a[i + 2] = low(code(words, i + 2, opaque), other, less)
                a[i + 3] = high(code(words, i + 3, opaque), other, less)

    @inlined
    def unpack_in_two(words: Any, a: Any, opaque: Any) -> None:
        for run in range(runs):
            scale, add = scales(words, run, opaque)
            if around:
                scale = fma(scale, large, NONE)
            else:
                add = NONE
            for i in range(4 * run * sixteens_per_run, 4 * (run * sixteens_per_run + sixteens_per_run), 4):
                a[i] = low(low(code(words, i, opaque), first, zero), scale, add)
                a[i + 1] = high(high(code(words, i + 1, opaque), first, zero), scale, add)
                a[i + 2] = low(low(code(words, i + 2, opaque), second, zero), scale, add)
                a[i + 3] = high(high(code(words, i + 3, opaque), second, zero), scale, add)

    return unpack_in_one if one_fma else unpack_in_two


def _times_scales(layout: PackedLayout, kind: str, stored: PackedLayout) -> Any:
    """Pairs of ``kind``, unpacked as of the layout ``stored``, times the scale, and the offset's pair."""
    unpack_sixteen, scales = sixteen_unpacker(stored, kind), scale_pairs(layout, kind)
    low, high, has_offset = PAIRS[kind].fma_low, PAIRS[kind].fma_high, layout.has_offset
    runs, sixteens_per_run = layout.runs, 4 // layout.runs

    @inlined
    def unpack(words: Any, a: Any, opaque: Any) -> None:
        pairs = cuda.local.array(4, uint32)
        for run in range(runs):
            scale, offset = scales(words, run, opaque)
            add = offset if has_offset else NONE
            for s in range(run * sixteens_per_run, run * sixteens_per_run + sixteens_per_run):
                unpack_sixteen(words, s, pairs, opaque)
                for r in range(0, 4, 2):
                    a[4 * s + r] = low(pairs[r], scale, add)
                    a[4 * s + r + 1] = high(pairs[r + 1], scale, add)

    return unpack


# Weights as halves, for activations in float16. Codes are exact, as in codes.py, around the middle where
# there is an offset. They are multiplied by the scale, rounded to a half, in one fma. An integer times a half
# is a multiple of its last place, so small scales cost no precision. A weight beyond 65504 is infinite.
# Scales that are powers of two or small floats reach beyond halves: such weights stay bfloat16.


def serves_halves(layout: PackedLayout) -> bool:
    """True where scales are halves, so that weights can be."""
    return layout.scale == "half"


@cache
def half_weights(layout: PackedLayout) -> Any:
    """The device function that makes a lane's sixteen registers of halves; operands are those of ``unpack``
    of ``fragment_weights``.
    """
    return _times_scales(layout, "float16", _centred(layout))


def _centred(layout: PackedLayout) -> PackedLayout:
    """The layout with codes around 0, where there is an offset."""
    return replace(layout, lowest=-layout.middle) if layout.has_offset else layout


# --- codes ---------------------------------------------------------------------------------------


def lowest_code(layout: PackedLayout) -> int:
    """The code whose bits are all 0; bytes have their sign turned over."""
    return -128 if layout.low == 8 else layout.lowest


def code_shift(layout: PackedLayout, r: int) -> int:
    """The first bit, within a byte, of the codes of register r of a sixteen."""
    return 0 if layout.high else layout.low * r & 7


def _multipliers(layout: PackedLayout, most: int) -> tuple[np.uint32, np.uint32]:
    """The powers that codes are multiplied by: for registers 0 and 1, which are rows g and g + 8, and for 2
    and 3.
    """

    def pair(r: int) -> np.uint32:
        low, high = (np.float32(2.0 ** (most - code_shift(layout, r + i))).view(np.uint32) for i in range(2))
        return np.uint32(int(low) >> 16 | int(high))

    return pair(0), pair(2)


@cache
def code_reader(layout: PackedLayout) -> Any:
    """The device function for the two codes of register i of a lane, in low bytes."""
    low, high = layout.low, layout.high
    places, masked_xor, mask = 16 // low, ptx.masked_xor, (1 << low) - 1
    above, by_place = np.uint32(0x00010001 * ((1 << high) - 1) << low), 7 * (not high)

    @inlined
    def read_bytes(words: Any, i: Any, opaque: Any) -> Any:
        word = words[i // 2] >> uint32(8 * (i % 2))
        return masked_xor(word, 0x00FF00FF | opaque, uint32(0x00800080))

    @inlined
    def read_bits(words: Any, i: Any, opaque: Any) -> Any:
        at = low * (i % places)
        place = at & by_place
        u = words[i // places] >> uint32(at - place) & uint32(0x00010001 * mask << uint32(place))
        if high:
            bits, by = words[low + i * high // 16], i * high % 16 - low
            u |= (bits >> uint32(by) if by > 0 else uint32(bits << uint32(-by))) & above
        return u

    return read_bytes if low == 8 else read_bits


# --- scales --------------------------------------------------------------------------------------


@cache
def scale_pairs(layout: PackedLayout, kind: str = "bfloat16") -> Any:
    """The device function for a run's scales of rows g and g + 8, a pair of ``kind``, and for the pair that
    their offsets add.

    The offset is taken at the middle of the codes, and rounded once. Halves without sub-scales are scales as
    they are stored.
    """
    if layout.scale == "power":
        return _powers(layout)
    if kind == "float16" and not layout.subs:
        return _stored_halves(layout)
    if layout.subs and layout.scale == "half":
        pair = _products(layout)
    else:
        values = of_both_rows(scale_value(layout))
        pair = inlined(lambda words, part, run, opaque: values(words, part, run))
    narrowed, fma, bits, middle = PAIRS[kind].narrowed, ptx.fma, layout.bits, np.float32(layout.middle)
    numbers, has_offset = layout.half_words + layout.sub_words, layout.has_offset

    @inlined
    def scales(words: Any, run: Any, opaque: Any) -> Any:
        loaded, offset = cuda.local.array(numbers, uint32), NONE
        for i in range(numbers):
            loaded[i] = words[bits + i]
        a, b = pair(loaded, 0, run, opaque)
        if has_offset:
            c, d = pair(loaded, 1, run, opaque)
            offset = narrowed(fma(a, middle, -c), fma(b, middle, -d))
        return narrowed(a, b), offset

    return scales


def _stored_halves(layout: PackedLayout) -> Any:
    bits, blocks, runs_per_block = layout.bits, layout.blocks, layout.runs // layout.blocks
    has_offset, middle, fma = layout.has_offset, np.uint32(halves.pair(layout.middle)), halves.fma
    assert not has_offset or layout.sign < 0, "what is stored is added"

    @inlined
    def scales(words: Any, run: Any, opaque: Any) -> Any:
        block = bits + run // runs_per_block
        scale, offset = words[block], NONE
        if has_offset:
            offset = fma(scale, middle, words[block + blocks])
        return scale, offset

    return scales


def _products(layout: PackedLayout) -> Any:
    """Half times byte, as in scales.py, except that the product takes off the excess of the byte."""
    runs, halves, nibbles = layout.runs, layout.half_words, layout.nibbles
    narrow, unit = layout.subs * runs == 2, np.float32(layout.unit)
    excess, none = np.float32(-(2.0**15) - layout.sub_zero), np.float32(-(2.0**15))
    half_value, float_of, permute, mul, fma = (
        ptx.half_value, ptx.float_of, ptx.permute, ptx.mul, ptx.fma,
    )  # fmt: skip
    assert layout.sign == 1
    assert layout.sub_zero % 32 == 0, "the product of a half and the excess is exact"

    @inlined
    def pair(words: Any, part: Any, run: Any, opaque: Any) -> Any:
        word, above = words[part], 0x47000000 | opaque  # 2**15 and a byte
        a, b = half_value(word & 0xFFFF) * unit, half_value(word >> 16) * unit
        first, second = words[halves], words[halves if narrow else halves + 1]
        if nibbles:
            first = first >> 4 * part & 0x0F0F0F0F
            second = second >> 4 * part & 0x0F0F0F0F
        i = run + (0 if nibbles else part * runs)
        first = permute(first, above, uint32(0x7404 + 16 * i))
        second = permute(second, above, uint32(0x7404 + 16 * (i + 2 * narrow)))
        less = none if part else excess
        return fma(a, float_of(first), mul(a, less)), fma(b, float_of(second), mul(b, less))

    return pair


def _powers(layout: PackedLayout) -> Any:
    """Powers of two from 2**-128 on: the exponent is one less, except in the two subnormal ones."""
    permute, largest, bits = ptx.permute, ptx.largest, layout.bits
    assert layout.subs * layout.runs == 2

    @inlined
    def scales(words: Any, run: Any, opaque: Any) -> Any:
        e = permute(words[bits], uint32(0), uint32(0x4240 + 0x0101 * run))
        there = largest(e, uint32(0x00010001))  # of a 0 nothing can be taken, but from the other half
        normal = uint32(uint32(there << 7) - 0x00800080)
        return largest(normal, uint32(uint32(e << 5) + 0x00200020)), uint32(0)

    return scales


# A lane's weights as pairs of rows in one column, where ``mma`` sums over rows: bfloat16, scale included.
#
# A lane has codes of rows g and g + 8. Its bytes, or its bfloat16, of the two rows are put side by side by
# one permutation. A pair of scales, as weights.py makes it, then multiplies each pair of codes: one fma, or
# two where there is an offset or a scale of any size, with the roundings of weights.py.

COLUMN_OF_BYTE = (0, 2, 1, 3)  # layouts/codes.py
LOW_HALVES, HIGH_HALVES = np.uint32(0x5410), np.uint32(0x7632)


class RowPairs(NamedTuple):
    """Device functions that make a lane's pairs of a fragment."""

    words: int  # that a lane loads
    load: Any  # (address of the fragment, lane, words)
    scales: Any  # (words, run, opaque) -> the pairs that multiply and add
    unpack: Any  # (words, s, w, at, multiply, add, opaque): the pairs of the four columns of sixteen s
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
    unpack_bytes, c, permute = byte_unpacker(layout), COLUMN_OF_BYTE, ptx.permute
    picks = tuple(np.uint32(0x8080 + byte + (4 + byte) * 0x100) for byte in range(4))

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        rows = cuda.local.array(2, int32)
        unpack_bytes(words, s, rows, 0, opaque)
        for byte in range(4):
            w[at + c[byte]] = permute(uint32(rows[0]), uint32(rows[1]), picks[byte])

    return codes


def _bytes() -> Any:
    """Bytes, raised by 128: a word has two columns of both rows."""
    permute = ptx.permute

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        for i in range(2):
            word = words[2 * s + i] ^ uint32(0x80808080)
            w[at + 2 * i] = permute(word, uint32(0), uint32(0x4140))
            w[at + 2 * i + 1] = permute(word, uint32(0), uint32(0x4342))

    return codes


def _levels(layout: PackedLayout) -> Any:
    """The looked-up levels, as bfloat16."""
    unpack_sixteen, permute = sixteen_unpacker(layout), ptx.permute

    @inlined
    def codes(words: Any, s: Any, w: Any, at: Any, opaque: Any) -> None:
        level = cuda.local.array(4, uint32)
        unpack_sixteen(words, s, level, opaque)
        for i in range(2):
            w[at + 2 * i] = permute(level[2 * i], level[2 * i + 1], LOW_HALVES)
            w[at + 2 * i + 1] = permute(level[2 * i], level[2 * i + 1], HIGH_HALVES)

    return codes


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

    return terms_of_codes if takes_one_fma(layout) else terms_of_values


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

    return weigh if layout.levels or takes_one_fma(layout) else weigh_in_two


# A lane's weights as ``wgmma`` takes them where sums run over rows: pairs of rows of one column.
#
# The first operand of ``y @ q`` has columns of weights as its rows. A warp multiplies 16 of them, those of
# a sixteen s of a fragment, by four fragments below each other, 64 rows. Lane 4 g + t needs rows 2 t, 2 t + 1
# and 2 t + 8, 2 t + 9 of two columns. The words that are packed for lanes 8 t + g / 2 and 8 t + 4 + g / 2
# have these rows of four columns, so it picks two:
#
#     lanes with g < 4      column 2 g as row g of the operand, 2 g + 1 as row g + 8
#     lanes with g >= 4     the other way round: so one exchange a sum puts them right (untwister())
#
# A lane makes both words into one, with fragment j in the place of sixteen j, and reads its codes as of any
# word. One lane in four makes the scales of a fragment, the others get them from it.

BELOW = FRAGMENT_ROWS // 2  # fragments below each other that are unpacked together
IN_ORDER, SWAPPED, NEXT_BYTE = 0x6420, 0x4602, 0x1111  # picks of bytes for two columns, and of those behind
REGISTER = (0, 2, 1, 3)  # of a sixteen, for codes of rows 2 t (+ 1), 2 t + 8 (+ 1) of either column


class ColumnOrder(NamedTuple):
    """The place of what lane 4 g + t reads of sixteen s, which its warp multiplies; scales are a run's."""

    g: Any
    t: Any
    s: Any
    run: Any


class ColumnWeights(NamedTuple):
    """Device functions that make a lane's sixteen registers of weights from four fragments."""

    words: int  # that a lane holds
    order: Any  # (lane, warp) -> what ``load`` and ``unpack`` need of both
    load: Any  # (address of the first fragment, order, words)
    unpack: Any  # (words, order, registers, opaque)
    factor: float  # multiplies the sums in the end


@cache
def column_weights(layout: PackedLayout, pitch: int, of_halves: bool) -> ColumnWeights:
    """The functions for a format's layout, with ``pitch`` bytes from a fragment to the one below it.

    ``of_halves``: weights become float16, else bfloat16.
    """
    weigh = (_looked_up if layout.levels else _read)(layout, of_halves)
    held, runs, has_offset = 2 * BELOW if layout.levels else layout.bits, layout.runs, layout.has_offset
    load_codes, load_scales = _code_loader(layout, pitch), _scale_loader(layout, pitch, of_halves)

    @inlined
    def order(lane: Any, warp: Any) -> Any:
        g, t, s = uint32(lane >> 2), uint32(lane & 3), uint32(warp & 3)
        return ColumnOrder(g, t, s, uint32(uint32(s * runs) >> 2))

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        load_codes(at, order, words)
        load_scales(at, order, words, held)

    @inlined
    def unpack_one(words: Any, j: Any, order: Any, a: Any, opaque: Any) -> None:
        lane = uint32(4 * j + order.t)
        low, high = from_lane(words[held], lane), from_lane(words[held + 1], lane)
        low_add, high_add = NONE, NONE
        if has_offset:
            low_add, high_add = from_lane(words[held + 2], lane), from_lane(words[held + 3], lane)
        weigh(words, j, order, (low, high), (low_add, high_add), a, opaque)

    @inlined
    def unpack(words: Any, order: Any, a: Any, opaque: Any) -> None:
        unpack_one(words, 0, order, a, opaque)  # a loop would not be unrolled
        unpack_one(words, 1, order, a, opaque)
        unpack_one(words, 2, order, a, opaque)
        unpack_one(words, 3, order, a, opaque)

    factor = 1.0 if of_halves else fragment_weights(layout).factor
    return ColumnWeights(held + 2 * (1 + has_offset), order, load, unpack, factor)


@cache
def untwister(columns: int) -> Any:
    """The device function that puts sums of 64 rows and ``columns`` columns in the order of rows.

    Lanes of even g take row g from lane g / 2, and row g + 8 from lane g / 2 + 4; odd ones the other way
    round.
    """
    count = columns // 2
    kind = types.UniTuple(f32, count)

    @emitted(kind, kind)
    def untwisted(builder: Any, sums: Any) -> Any:
        return emit_in_place(builder, _untwisting(count), parts(builder, sums, count))

    return untwisted


def _untwisting(count: int) -> str:
    """The assembly of ``untwisted`` for so many sums, in place."""
    lines = ["{.reg .pred odd; .reg .b32 lane, near, far, a, b;"]
    lines += ["mov.u32 lane, %laneid; and.b32 a, lane, 4; setp.ne.u32 odd, a, 0;"]
    lines += ["shr.u32 near, lane, 1; and.b32 near, near, 12; and.b32 b, lane, 3; or.b32 near, near, b;"]
    lines += ["xor.b32 far, near, 16; selp.b32 lane, far, near, odd; xor.b32 far, lane, 16;"]
    for i in range(0, count, 4):
        for low, high in ((i, i + 2), (i + 1, i + 3)):
            lines += [f"shfl.sync.idx.b32 a, ${low}, lane, 31, -1;"]
            lines += [f"shfl.sync.idx.b32 b, ${high}, far, 31, -1;"]
            lines += [f"selp.b32 ${low}, b, a, odd; selp.b32 ${high}, a, b, odd;"]
    return "\n".join([*lines, "}"])


# --- codes ---------------------------------------------------------------------------------------


def _code_loader(layout: PackedLayout, pitch: int) -> Any:
    """The device function that loads both words of each plane and fragment, and makes one of them."""
    if layout.levels:
        return _raw_loader(pitch)
    if layout.low == 8:
        return _byte_loader(pitch)
    low = _plane_loader(layout.low, 0, 0, pitch)
    if not layout.high:
        return low
    high = _plane_loader(layout.high, layout.high_at, layout.low, pitch)

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        low(at, order, words)
        high(at, order, words)

    return load


def _plane_loader(bits: int, plane_at: int, first: int, pitch: int) -> Any:
    """The function for a plane of codes' ``bits``, whose words begin with word ``first``."""
    length, take4, permute = 4 * bits, ptx.take4, ptx.permute  # bytes of a lane
    mask, masked_or = np.uint32(0x00010001 * ((1 << 2 * bits) - 1)), ptx.masked_or

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s = order.g, order.t, order.s
        odd, swapped = uint32(g & 1), g >= 4
        picks, by = uint32(SWAPPED if swapped else IN_ORDER), uint32(0)
        if bits == 4:
            word, byte = s, odd
        elif bits == 2:
            word, byte, by = uint32(s >> 1), uint32(s & 1), uint32(odd << 2)
        else:
            word, byte = uint32(0), uint32(s >> 1)
            by = uint32(uint32(uint32(s & 1) << 2) + uint32(odd << 1))
        picks = uint32(picks + byte * NEXT_BYTE)
        lane = uint32(uint32(t << 3) + uint32(g >> 1))
        here = uint32(at + uint32(lane * length) + uint32(word << 2))
        for j in range(BELOW):
            there = uint32(here + uint32(j * pitch + plane_at))
            both = permute(take4(there), take4(uint32(there + 4 * length)), picks)
            if bits < 4:
                both = uint32(both >> by)
                rest = uint32(both >> 8 - 2 * bits) & uint32(mask << np.uint32(2 * bits))
                both = uint32(masked_or(both, mask, rest) << uint32(4 * bits * j % 16))
            to, begins = first + 4 * bits * j // 16, 4 * bits * j % 16 == 0
            words[to] = both if begins else uint32(words[to] | both)

    return load


def _byte_loader(pitch: int) -> Any:
    """The function for codes of eight bits: a word has both rows of two columns."""
    take4, permute = ptx.take4, ptx.permute

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s = order.g, order.t, order.s
        swapped = g >= uint32(4)
        word = uint32(uint32(s << uint32(1)) + uint32(g & uint32(1)))
        lane = uint32(uint32(t << uint32(3)) + uint32(g >> uint32(1)))
        here = uint32(at + uint32(lane << uint32(4)) + uint32(uint32(word >> uint32(2)) << uint32(9)))
        here = uint32(here + uint32(uint32(word & uint32(3)) << uint32(2)))
        first = uint32(HIGH_HALVES if swapped else LOW_HALVES)
        second = uint32(LOW_HALVES if swapped else HIGH_HALVES)
        for j in range(BELOW):
            there = uint32(here + uint32(j * pitch))
            a, b = take4(there), take4(uint32(there + uint32(64)))
            words[2 * j], words[2 * j + 1] = permute(a, b, first), permute(a, b, second)

    return load


def _raw_loader(pitch: int) -> Any:
    """The function for codes that are looked up: both words as they are."""
    take4 = ptx.take4

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s = order.g, order.t, order.s
        lane = uint32(uint32(t << 3) + uint32(g >> 1))
        here = uint32(at + uint32(lane << 4) + uint32(s << 2))
        for j in range(BELOW):
            there = uint32(here + uint32(j * pitch))
            words[2 * j], words[2 * j + 1] = take4(there), take4(uint32(there + 64))

    return load


def _read(layout: PackedLayout, of_halves: bool) -> Any:
    """The device function that multiplies the codes of fragment j, which are read as of a packed word."""
    if of_halves:
        return _read_halves(layout)
    code, terms = code_reader(layout), multipliers(layout)
    weigh = [weigher(layout, code_shift(layout, r)) for r in range(4)]
    w0, w1, w2, w3 = weigh

    @inlined
    def read(words: Any, j: Any, order: Any, scales: Any, adds: Any, a: Any, opaque: Any) -> None:
        low, low_add = terms(scales[0], adds[0])
        high, high_add = terms(scales[1], adds[1])
        a[4 * j] = w0(code(words, 4 * j, opaque), low, low_add)
        a[4 * j + 2] = w1(code(words, 4 * j + 1, opaque), high, high_add)
        a[4 * j + 1] = w2(code(words, 4 * j + 2, opaque), low, low_add)
        a[4 * j + 3] = w3(code(words, 4 * j + 3, opaque), high, high_add)

    return read


def _read_halves(layout: PackedLayout) -> Any:
    unpack_sixteen, fma, register = sixteen_unpacker(_centred(layout), "float16"), halves.fma, REGISTER

    @inlined
    def read(words: Any, j: Any, order: Any, scales: Any, adds: Any, a: Any, opaque: Any) -> None:
        code = cuda.local.array(4, uint32)
        unpack_sixteen(words, j, code, opaque)
        for r in range(4):
            a[4 * j + register[r]] = fma(code[r], scales[r % 2], adds[r % 2])

    return read


def _looked_up(layout: PackedLayout, of_halves: bool) -> Any:
    """The device function for codes that are looked up, first for both words, as pairs of columns."""
    unpack_sixteen = sixteen_unpacker(layout, "float16" if of_halves else "bfloat16")
    fma, permute, fp4 = halves.fma if of_halves else bf16x2.fma, ptx.permute, layout.fp4

    @inlined
    def pair_of(word: Any, odd: Any, level: Any, opaque: Any) -> Any:
        one = cuda.local.array(1, uint32)
        one[0] = word if fp4 else uint32(word >> uint32(odd << 4))
        unpack_sixteen(one, 0, level, opaque)
        if fp4 and odd:  # its bits of other columns do not lie 16 places further
            level[0], level[1] = level[2], level[3]
        return level[0], level[1]

    @inlined
    def read(words: Any, j: Any, order: Any, scales: Any, adds: Any, a: Any, opaque: Any) -> None:
        odd, swapped = uint32(order.g & 1), order.g >= 4
        first = HIGH_HALVES if swapped else LOW_HALVES
        second = LOW_HALVES if swapped else HIGH_HALVES
        level = cuda.local.array(4, uint32)
        low, high = pair_of(words[2 * j], odd, level, opaque)
        low2, high2 = pair_of(words[2 * j + 1], odd, level, opaque)
        a[4 * j] = fma(permute(low, low2, first), scales[0], NONE)
        a[4 * j + 1] = fma(permute(low, low2, second), scales[0], NONE)
        a[4 * j + 2] = fma(permute(high, high2, first), scales[1], NONE)
        a[4 * j + 3] = fma(permute(high, high2, second), scales[1], NONE)

    return read


# --- scales --------------------------------------------------------------------------------------


def _scale_loader(layout: PackedLayout, pitch: int, of_halves: bool) -> Any:
    """The device function that makes pairs of scales of one fragment: of rows 2 t, 2 t + 1, and 8 further.

    Those that offsets add follow, taken at the middle of the codes.
    """
    load_run, has_offset, middle = run_scale_loader(layout), layout.has_offset, np.float32(layout.middle)
    narrowed, fma, values = halves.narrowed if of_halves else bf16x2.narrowed, ptx.fma, 2 * (1 + has_offset)

    @inlined
    def load(at: Any, order: Any, words: Any, to: Any) -> None:
        g, t, run = order.g, order.t, order.run
        here, lane = uint32(at + uint32(g & 3) * pitch), uint32(t << 3)
        upper, lower = cuda.local.array(values, float32), cuda.local.array(values, float32)
        load_run(here, lane, run, upper)
        load_run(here, uint32(lane + 4), run, lower)
        words[to], words[to + 1] = narrowed(upper[0], lower[0]), narrowed(upper[1], lower[1])
        if has_offset:
            for side in range(2):
                words[to + 2 + side] = narrowed(
                    fma(upper[side], middle, -upper[2 + side]), fma(lower[side], middle, -lower[2 + side])
                )

    return load
