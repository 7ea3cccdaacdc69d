"""A lane's weights as ``wgmma`` takes them where sums run over rows: pairs of rows of one column.

The first operand of ``y @ q`` has columns of weights as its rows. A warp multiplies 16 of them, those of one
step s of a fragment, by four fragments below each other, 64 rows. Lane 4 g + t needs rows 2 t, 2 t + 1 and
2 t + 8, 2 t + 9 of two columns. The words that are packed for lanes 8 t + g / 2 and 8 t + 4 + g / 2 have
these rows of four columns, so it picks two:

    lanes with g < 4      column 2 g as row g of the operand, 2 g + 1 as row g + 8
    lanes with g >= 4     the other way round: so one exchange a sum puts them right (untwister())

A lane makes both words into one with fragment j in the place of step j, and reads its codes as of any word.
One lane in four makes the scales of a fragment, the others get them from it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..intrinsics import bf16x2, halves, ptx
from ..intrinsics.assembly import FLOAT, as_intrinsic, emit_assembly, f32, instruction, only_on_a_gpu, u32
from ..intrinsics.atoms import inlined
from ..intrinsics.language import SIMULATED, cuda, float32, ir, types, uint32
from ..intrinsics.wgmma import unpacked
from .codes import half_unpacker, step_unpacker
from .layout import FRAGMENT_ROWS, PackedLayout
from .scales import run_scale_loader
from .weights import (
    HIGH_HALVES,
    LOW_HALVES,
    NONE,
    code_reader,
    code_shift,
    fragment_weights,
    multipliers,
    weigher,
)

BELOW = FRAGMENT_ROWS // 2  # fragments below each other that are unpacked together
IN_ORDER, SWAPPED, NEXT_BYTE = 0x6420, 0x4602, 0x1111  # picks of bytes for two columns, and of those behind
REGISTER = (0, 2, 1, 3)  # of a step, for codes of rows 2 t (+ 1), 2 t + 8 (+ 1) of either column


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", u32, u32, u32, effect=True)
def from_lane(value: Any, lane: Any) -> Any:
    """The value of another lane."""
    only_on_a_gpu()


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
        g, t, s = uint32(lane >> uint32(2)), uint32(lane & uint32(3)), uint32(warp & uint32(3))
        return g, t, s, uint32(uint32(s * uint32(runs)) >> uint32(2))

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        load_codes(at, order, words)
        load_scales(at, order, words, held)

    @inlined
    def unpack_one(words: Any, j: Any, order: Any, a: Any, opaque: Any) -> None:
        lane = uint32(uint32(4 * j) + order[1])
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

    def untwisted(sums: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values, result = unpacked(builder, operands[0], count), ir.LiteralStructType([FLOAT] * count)
        constraints = ["=f"] * count + [str(i) for i in range(count)]
        results = emit_assembly(builder, result, _untwisting(count), constraints, values, effect=True)
        parts = [builder.extract_value(results, i) for i in range(count)]
        return context.make_tuple(builder, signature.return_type, parts)

    return untwisted if SIMULATED else as_intrinsic(untwisted, kind(kind), emit)


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
    length, take4, permute = 4 * bits, bf16x2.take4, bf16x2.permute  # bytes of a lane
    mask, masked_or = np.uint32(0x00010001 * ((1 << 2 * bits) - 1)), ptx.masked_or

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s, _ = order
        odd, swapped = uint32(g & uint32(1)), g >= uint32(4)
        picks, by = uint32(SWAPPED if swapped else IN_ORDER), uint32(0)
        if bits == 4:
            word, byte = s, odd
        elif bits == 2:
            word, byte, by = uint32(s >> uint32(1)), uint32(s & uint32(1)), uint32(odd << uint32(2))
        else:
            word, byte = uint32(0), uint32(s >> uint32(1))
            by = uint32(uint32(uint32(s & uint32(1)) << uint32(2)) + uint32(odd << uint32(1)))
        picks = uint32(picks + byte * uint32(NEXT_BYTE))
        lane = uint32(uint32(t << uint32(3)) + uint32(g >> uint32(1)))
        here = uint32(at + uint32(lane * uint32(length)) + uint32(word << uint32(2)))
        for j in range(BELOW):
            there = uint32(here + uint32(j * pitch + plane_at))
            both = permute(take4(there), take4(uint32(there + uint32(4 * length))), picks)
            if bits < 4:
                both = uint32(both >> by)
                rest = uint32(both >> uint32(8 - 2 * bits)) & uint32(mask << np.uint32(2 * bits))
                both = uint32(masked_or(both, mask, rest) << uint32(4 * bits * j % 16))
            to, begins = first + 4 * bits * j // 16, 4 * bits * j % 16 == 0
            words[to] = both if begins else uint32(words[to] | both)

    return load


def _byte_loader(pitch: int) -> Any:
    """The function for codes of eight bits: a word has both rows of two columns."""
    take4, permute = bf16x2.take4, bf16x2.permute

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s, _ = order
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
    take4 = bf16x2.take4

    @inlined
    def load(at: Any, order: Any, words: Any) -> None:
        g, t, s, _ = order
        lane = uint32(uint32(t << uint32(3)) + uint32(g >> uint32(1)))
        here = uint32(at + uint32(lane << uint32(4)) + uint32(s << uint32(2)))
        for j in range(BELOW):
            there = uint32(here + uint32(j * pitch))
            words[2 * j], words[2 * j + 1] = take4(there), take4(uint32(there + uint32(64)))

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
    unpack_step, fma, register = half_unpacker(_centred(layout)), halves.fma, REGISTER

    @inlined
    def read(words: Any, j: Any, order: Any, scales: Any, adds: Any, a: Any, opaque: Any) -> None:
        code = cuda.local.array(4, uint32)
        unpack_step(words, j, code, opaque)
        for r in range(4):
            a[4 * j + register[r]] = fma(code[r], scales[r % 2], adds[r % 2])

    return read


def _looked_up(layout: PackedLayout, of_halves: bool) -> Any:
    """The device function for codes that are looked up, first for both words, as pairs of columns."""
    unpack_step = (half_unpacker if of_halves else step_unpacker)(layout)
    fma, permute, fp4 = halves.fma if of_halves else bf16x2.fma, bf16x2.permute, layout.fp4

    @inlined
    def pair_of(word: Any, odd: Any, level: Any, opaque: Any) -> Any:
        one = cuda.local.array(1, uint32)
        one[0] = word if fp4 else uint32(word >> uint32(odd << uint32(4)))
        unpack_step(one, 0, level, opaque)
        if fp4 and odd:  # its bits of other columns do not lie 16 places further
            level[0], level[1] = level[2], level[3]
        return level[0], level[1]

    @inlined
    def read(words: Any, j: Any, order: Any, scales: Any, adds: Any, a: Any, opaque: Any) -> None:
        odd, swapped = uint32(order[0] & uint32(1)), order[0] >= uint32(4)
        first = uint32(HIGH_HALVES if swapped else LOW_HALVES)
        second = uint32(LOW_HALVES if swapped else HIGH_HALVES)
        level = cuda.local.array(4, uint32)
        low, high = pair_of(words[2 * j], odd, level, opaque)
        low2, high2 = pair_of(words[2 * j + 1], odd, level, opaque)
        a[4 * j] = fma(permute(low, low2, first), scales[0], NONE)
        a[4 * j + 1] = fma(permute(low, low2, second), scales[0], NONE)
        a[4 * j + 2] = fma(permute(high, high2, first), scales[1], NONE)
        a[4 * j + 3] = fma(permute(high, high2, second), scales[1], NONE)

    return read


def _centred(layout: PackedLayout) -> PackedLayout:
    return replace(layout, lowest=-layout.middle) if layout.has_offset else layout


# --- scales --------------------------------------------------------------------------------------


def _scale_loader(layout: PackedLayout, pitch: int, of_halves: bool) -> Any:
    """The device function that makes pairs of scales of one fragment: of rows 2 t, 2 t + 1, and 8 further.

    Those that offsets add follow, taken at the middle of the codes.
    """
    load_run, has_offset, middle = run_scale_loader(layout), layout.has_offset, np.float32(layout.middle)
    narrowed, fma, values = halves.narrowed if of_halves else bf16x2.narrowed, ptx.fma, 2 * (1 + has_offset)

    @inlined
    def load(at: Any, order: Any, words: Any, to: Any) -> None:
        g, t, _, run = order
        here, lane = uint32(at + uint32(g & uint32(3)) * uint32(pitch)), uint32(t << uint32(3))
        upper, lower = cuda.local.array(values, float32), cuda.local.array(values, float32)
        load_run(here, lane, run, upper)
        load_run(here, uint32(lane + uint32(4)), run, lower)
        words[to], words[to + 1] = narrowed(upper[0], lower[0]), narrowed(upper[1], lower[1])
        if has_offset:
            for side in range(2):
                words[to + 2 + side] = narrowed(
                    fma(upper[side], middle, -upper[2 + side]), fma(lower[side], middle, -lower[2 + side])
                )

    return load
