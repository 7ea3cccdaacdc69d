"""The decoder of a run of a panel, 32 weights of 16 rows, to a tile of bfloat16: code · scale - offset.

A row of a tile is a pair of neighbouring weights of each of 16 rows. Halves of it are made in lanes of
float32, eight rows by two weights, so that rounding both to bfloat16 leaves them in their places:

    codes      of eight rows, each twice, rotated so that the code stands in the lowest bits of its lane
    floats     up to 5 bits: looked up in a table of 16 or 32, which ignores the bits above and knows levels
               and zeros; more bits: masked, converted
    weights    times the scale, less the offset, rounded once: ggml's float32, since scales times codes are
               exact wherever there is an offset

Where there is no offset, and scales are halves or these times integers, a code is put into a byte of a float:
without a conversion that is ``base`` + code, and the fused addend - (base + zero) · scale is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.simd import BYTES, FLOATS, I1, I32, I64, INTS, vec
from ..machine.target import AVX512
from ..panels.layout import TABLE, PanelLayout, remaining_zero
from ..panels.read import Panel, Place
from .unit import PITCH, bfloats

LOOKED_UP = 5  # bits of the longest index
PARTS = 8  # of a decoding
FLOAT_BITS = 24  # of the significand of a float32
# Bits of the significands of scales; larger ones can make frames overflow.
SCALE_BITS = {"f16": 11, "i8": 11 + 8, "i4": 11 + 4}


class Frame(NamedTuple):
    """A float32 with room for a code in one of its bytes, whose last bit counts as one."""

    bits: int  # as an integer, without a code
    base: int  # as a number
    byte: int


FRAMES = Frame(0x43000000, 1 << 7, 2), Frame(0x47000000, 1 << 15, 1)  # for codes of 7 bits and of 8


def frame_of(layout: PanelLayout) -> Frame | None:
    """The float that holds a layout's codes, or None where the addend would not be exact."""
    if layout.offset or layout.scale not in SCALE_BITS:
        return None
    frame = FRAMES[sum(layout.planes) > 7 or bool(layout.table)]
    addend = frame.base + remaining_zero(layout, AVX512)
    odd = addend // (addend & -addend)
    return frame if odd.bit_length() + SCALE_BITS[layout.scale] <= FLOAT_BITS else None


@cache
def decoder(layout: PanelLayout) -> Any:
    """An intrinsic that decodes a run of a panel to a tile: (panel, number of the run, tile)."""
    return intrinsic_of(lambda builder, *words: Decoder(builder, layout).emit(*words), 3)


class Decoder(Panel):
    """Emits the decoding of a run to a tile."""

    def __init__(self, builder: Any, layout: PanelLayout) -> None:
        super().__init__(builder, layout, AVX512)
        self.bits = sum(layout.planes)
        self.frame = frame_of(layout)
        # Zeros that LLVM cannot know: of a look-up that it knows it makes two or three instructions.
        self.hidden = self.simd.splat(self.simd.apart(I64(0)), 8)

    def emit(self, panel: Any, run: Any, to: Any) -> None:
        for _ in self.parts(panel, run, to):
            pass

    def parts(self, panel: Any, run: Any, to: Any) -> Iterator[None]:
        """The decoding in eight parts, two rows of the tile each, with room for other instructions."""
        here = self.run_at(panel, run)
        scales = [self._scales(here, group) for group in range(self.layout.groups)]
        fours = 8 // self.layout.groups  # that share a scale
        planes: dict[int, list[Any]] = {}
        for j in sorted(range(8), key=lambda j: (j % 4, j)):  # fours that share a vector one after the other
            framed = self.codes(here, j) if self.frame else None
            for pair in range(2):
                halves = []
                for half in range(2):
                    scale, less = (lanes and lanes[half] for lanes in scales[j // fours])
                    if self.frame:
                        value = self._framed(framed, self.frame, pair, half)
                    else:
                        value = self._float(self._codes(here, planes, j, pair, half))
                    halves.append(self.simd.fma(value, scale, less) if less else self.b.fmul(value, scale))
                place = self.b.add(to, I64(PITCH * (2 * j + pair)))
                self.simd.store(bfloats(self.simd, *halves), place)
            yield

    def _scales(self, here: Place, group: int) -> tuple[Any, Any]:
        """Scales and addends (or None), for eight rows and for the other eight."""
        scale, offset = self.scale(here, group)
        less, zero = offset, self.layout.zero * (self.bits > LOOKED_UP)  # a table takes it off by itself
        if self.frame:
            zero = self.frame.base + remaining_zero(self.layout, AVX512)
        if zero:
            zeros = self.b.fmul(scale, ir.Constant(FLOATS, [float(zero)] * 16))
            less = self.b.fadd(zeros, offset) if offset else zeros
        return self._twice(scale), self._twice(self.b.fneg(less)) if less else None

    def _codes(self, here: Place, planes: dict[int, list[Any]], j: int, pair: int, half: int) -> Any:
        """Codes in the lowest bits of lanes; the bits above them are undefined."""
        low, codes = 0, None
        for at, width in zip(self.layout.planes_at, self.layout.planes, strict=True):
            places = {8: (j, 0), 4: (j % 4, j // 4 * 4), 2: (j // 4, j % 4 * 2), 1: (0, j)}
            vector, bit = places[width]
            place = at + 64 * vector
            if place not in planes:
                planes[place] = self._twice(self.simd.load(self.b.add(here.run, I64(place)), INTS))
            by = [(16 * pair + 8 * (lane % 2) + bit - low) % 32 for lane in range(16)]
            bits = planes[place][half]
            if any(by):
                bits = self.simd.call("llvm.fshr.v16i32", INTS, bits, bits, ir.Constant(INTS, by))
            if codes is not None:
                below = ir.Constant(INTS, [(1 << low) - 1] * 16)
                bits = self.b.or_(self.b.and_(codes, below), self.b.and_(bits, self.b.not_(below)))
            codes, low = bits, low + width
        return codes

    def _float(self, codes: Any) -> Any:
        """Codes as floats, without their zero, or with it where the scale takes it off."""
        layout = self.layout
        if self.bits > LOOKED_UP:
            mask = ir.Constant(INTS, [(1 << self.bits) - 1] * 16)
            return self.b.sitofp(self.b.and_(codes, mask), FLOATS)
        period = 1 << self.bits
        levels = layout.table or range(-layout.zero, period - layout.zero)
        values = [levels[i % period] for i in range(max(TABLE, period))]
        parts = [
            ir.Constant(FLOATS, [float(value) for value in values[i : i + 16]])
            for i in range(0, len(values), 16)
        ]
        if len(parts) == 1:
            return self.simd.call("llvm.x86.avx512.permvar.sf.512", FLOATS, parts[0], codes)
        return self.simd.call("llvm.x86.avx512.vpermi2var.ps.512", FLOATS, parts[0], codes, parts[1])

    def _framed(self, codes: Any, frame: Frame, pair: int, half: int) -> Any:
        """The codes of eight rows and two columns, bytes [16, 4], as floats above them."""
        places = [32 * half + 4 * (lane // 2) + 2 * pair + lane % 2 for lane in range(16)]
        index = ir.Constant(BYTES, [place for place in places for _ in range(4)])
        index = self.b.or_(index, self.b.bitcast(self.hidden, BYTES))
        picked = self.simd.call("llvm.x86.avx512.permvar.qi.512", BYTES, codes, index)
        inside = ir.Constant(vec(I1, 64), [byte % 4 == frame.byte for byte in range(64)])
        around = ir.Constant(BYTES, [frame.bits >> 8 * (byte % 4) & 255 for byte in range(64)])
        return self.b.bitcast(self.b.select(inside, picked, around), FLOATS)

    def _twice(self, vector: Any) -> list[Any]:
        """The first eight lanes, each twice, and the other eight."""
        return [
            self.b.shuffle_vector(
                vector, ir.Constant(vector.type, ir.Undefined),
                ir.Constant(vec(I32, 16), [first + i // 2 for i in range(16)]),
            )
            for first in (0, 8)
        ]  # fmt: skip
