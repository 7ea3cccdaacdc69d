"""The products of cuda:gemv_int16, with one row: activations as integers of 16 bits, a byte in each column.

Codes of weights become bytes with fewer instructions than floats, and ``mma`` of bytes takes 32 columns of K
at once. So each 32 activations become integers, a power of two times theirs, and an integer two *digits*: the
low byte with its sign, and what is left, 256 times less.

A *unit* is a run of weights, or 32 columns where a run is longer. The operand's eight columns are two digits
in four units, each zero in the columns of K of other units. So lane 4 g + t gets sums of digits and codes of
unit t alone. It puts them together, and scales them by the weights' scale and the activations'. A *batch* is
as many fragments as have four units. In the end the lanes with the same g add up their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...intrinsics import bf16x2, codes, codes8, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, four_into, g_and_t
from ...intrinsics.language import cuda, float32, int32, uint32
from ...layouts.codes import buffer_sizes, byte_unpacker, lowest_byte, word_loader
from ...layouts.layout import STEP
from ...layouts.scales import run_scale_loader
from .stages import HALVES, TWO, GemvStage

PLACES = 4  # units that an operand has columns for
WIDTH = 32  # activations that share a power of two; columns of K in one mma
BITS = 13  # activations are integers times 2**(e - BITS), where the largest is below 2**(e + 1)
LEAST, NOT_FINITE = 14, 255  # exponents of a float: whose unit is 2**-126, and of infinity and NaN
DIGIT = 256
ROUNDER = 1.5 * 2.0**23  # a float plus this has its nearest integer in its last bits
NAN = np.uint32(0x7FC00000)


@dataclass(frozen=True)
class DigitBatch:
    """The part of a stage that is multiplied at once."""

    stage: GemvStage

    @property
    def unit(self) -> int:
        """Columns of K of a unit."""
        return min(self.stage.layout.run, WIDTH)

    @property
    def fragments(self) -> int:
        return min(PLACES * self.unit // STEP, self.stage.span)

    @property
    def units(self) -> int:
        """Units of a batch; fewer than there are places where a stage has one fragment."""
        return self.fragments * STEP // self.unit

    @property
    def products(self) -> int:
        """The ``mma`` of a batch for a fragment row."""
        return self.fragments * STEP // WIDTH


@cache
def multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span of all fragment rows to a lane's sums, four for each of them."""
    multiply_batch, twice = batch_multiplier(stage), stage.span > DigitBatch(stage).fragments

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_batch(at, 0, lane, kind, sums, opaque)
        if twice:
            multiply_batch(at, 1, lane, kind, sums, opaque)

    return multiply


def float_takers() -> tuple[Any, Any]:
    """The device functions that load four activations of a row, from a column on: float32, and 16 bits."""
    take16, take8, half_values, float_of = ptx.take_floats, bf16x2.take8, codes.half_values, ptx.float_of

    @inlined
    def take_floats(row_at: Any, column: Any, v: Any, at: Any) -> None:
        four_into(v, at, take16(uint32(row_at + uint32(column << 2))))

    @inlined
    def take_bits(row_at: Any, column: Any, kind: Any, v: Any, at: Any) -> None:
        pairs = take8(uint32(row_at + uint32(column << 1)))
        if kind == HALVES:
            v[at], v[at + 1] = half_values(pairs[0])
            v[at + 2], v[at + 3] = half_values(pairs[1])
        else:
            for i in range(2):
                v[at + 2 * i] = float_of(uint32(pairs[i] << 16))
                v[at + 2 * i + 1] = float_of(uint32(pairs[i] & 0xFFFF0000))

    return take_floats, take_bits


@inlined
def power_of(exponent: Any) -> Any:
    """The factor that makes integers of activations, and the unit of these, by the largest one's exponent."""
    held = max(exponent, uint32(LEAST))
    factor, unit = uint32(254 + BITS - held) << 23, uint32(held - BITS) << 23
    return factor, unit if exponent < NOT_FINITE else NAN


@cache
def largest_exponent(batch: DigitBatch) -> Any:
    """The device function that gives the exponent of the largest of 32 activations, which lanes share."""
    numbers, bits_of = batch.unit // 4, ptx.bits_of

    @inlined
    def exponent(v: Any) -> Any:
        largest = int32(0)
        for i in range(numbers):
            largest = max(largest, int32(bits_of(v[i]) & 0x7FFFFFFF))
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 1))
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 2))
        if numbers == 4:  # the other half of the 32 is the next unit's
            largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 8))
        return uint32(largest) >> 23

    return exponent


@cache
def digits_of(stage: GemvStage) -> Any:
    """The device function that loads a batch's activations: of the lane's own unit, zeros for other units.

    ``b``: registers of ``mma``. It gives the unit of the lane's integers, as a float.
    """
    batch, x_at = DigitBatch(stage), stage.fragment_rows * stage.size
    units, width, steps, batch_columns = batch.units, batch.unit, batch.unit // 16, STEP * batch.fragments
    (take_floats, take_bits), exponent_of, permute = float_takers(), largest_exponent(batch), bf16x2.permute
    float_of, bits_of, fma, some_idle = ptx.float_of, ptx.bits_of, ptx.fma, batch.units < PLACES
    rounder, half_digit, numbers = float32(ROUNDER), float32(DIGIT // 2), 4 * steps

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any, b: Any) -> Any:
        g, t = g_and_t(lane)
        lane_unit, digit, v = g >> 1, g & 1, cuda.local.array(numbers, float32)
        unit = min(lane_unit, uint32(units - 1)) if some_idle else lane_unit
        row_at = at + x_at
        first = which * batch_columns + t * 4 + unit * width
        if kind == 0:
            for i in range(steps):
                take_floats(row_at, first + uint32(16 * i), v, 4 * i)
        else:
            for i in range(steps):
                take_bits(row_at, first + uint32(16 * i), kind, v, 4 * i)
        factor, size = power_of(exponent_of(v))
        scaled, start = float_of(factor), rounder + half_digit * float32(digit)
        picks = 0x40 + digit * 0x11  # the low byte of two words, or the next one
        for i in range(steps):
            w0, w1 = bits_of(fma(v[4 * i], scaled, start)), bits_of(fma(v[4 * i + 1], scaled, start))
            w2, w3 = bits_of(fma(v[4 * i + 2], scaled, start)), bits_of(fma(v[4 * i + 3], scaled, start))
            word = permute(permute(w0, w2, picks), permute(w1, w3, picks), uint32(0x5410))
            for j in range(units):
                b[j * steps + i] = word if lane_unit == uint32(j) else 0
        return float_of(size)

    return take


@cache
def batch_multiplier(stage: GemvStage) -> Any:
    """The device function that adds one batch of all fragment rows to a lane's sums."""
    batch, layout, four_rows = DigitBatch(stage), stage.layout, stage.fragment_rows > TWO
    take, products, batch_bytes = digits_of(stage), batch.products, batch.fragments * layout.fragment_bytes
    count, needs_sums = 2 * products, layout.has_offset or lowest_byte(layout) != 0
    mma, multiply_pair = codes8.integer_mma("s8", "s8"), pair_multiplier(stage)

    @inlined
    def multiply(at: Any, which: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b, x = cuda.local.array(count, uint32), cuda.local.array(2, int32)
        size = take(at, which, lane, kind, b)
        size = cuda.shfl_sync(ALL_LANES, size, int32((lane & 3) << 3))  # of unit t
        x[0] = x[1] = int32(0)
        if needs_sums:  # of the digits
            one = int32(0x01010101)
            for j in range(products):
                v = mma(one, one, one, one, int32(b[2 * j]), int32(b[2 * j + 1]), x[0], x[1], x[0], x[1])
                x[0], x[1] = v[0], v[1]
        here = at + which * batch_bytes
        multiply_pair(here, 0, lane, b, x, size, sums, opaque)
        if four_rows:
            multiply_pair(here, 1, lane, b, x, size, sums, opaque)  # a loop over four is not always unrolled

    return multiply


@cache
def fragment_adder(stage: GemvStage) -> Any:
    """The device function that adds the products of one fragment, the ``which``-th of a batch, to ``d``."""
    layout, per_fragment = stage.layout, STEP // WIDTH
    (count, _), load_words, unpack = buffer_sizes(layout), word_loader(layout), byte_unpacker(layout)
    mma = codes8.integer_mma("s8", "s8")

    @inlined
    def add_fragment(at: Any, lane: Any, which: Any, b: Any, d: Any, opaque: Any) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, int32)
        load_words(at, lane, words)
        for j in range(per_fragment):
            unpack(words, 2 * j, a, 0, opaque)
            unpack(words, 2 * j + 1, a, 2, opaque)
            i = 2 * (which * per_fragment + j)
            v = mma(a[0], a[1], a[2], a[3], int32(b[i]), int32(b[i + 1]), d[0], d[1], d[2], d[3])
            d[0], d[1], d[2], d[3] = v[0], v[1], v[2], v[3]

    return add_fragment


@inlined
def whole(high: Any, low: Any) -> Any:
    """The number of two sums: of high digits, and of low ones."""
    return float32(int32(high * int32(DIGIT) + low))


@cache
def pair_multiplier(stage: GemvStage) -> Any:
    """The device function that multiplies two fragment rows by the digits of a batch."""
    batch, layout, size_of_row, add_fragment = (
        DigitBatch(stage), stage.layout, stage.size, fragment_adder(stage)
    )  # fmt: skip
    fragments, units, fragment_bytes = batch.fragments, batch.units, layout.fragment_bytes
    per_fragment, unit_columns, run = STEP // batch.unit, batch.unit, layout.run
    load_scales, has_offset, lowest = run_scale_loader(layout), layout.has_offset, int32(lowest_byte(layout))

    @inlined
    def multiply_pair(
        here: Any, pair: Any, lane: Any, b: Any, x: Any, size: Any, sums: Any, opaque: Any
    ) -> None:
        d, f = cuda.local.array(4, int32), cuda.local.array(4, float32)
        unit = min(lane & 3, uint32(units - 1))
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            at = here + uint32(fragment_row * size_of_row)
            d[0] = d[2] = int32(lowest * x[0])
            d[1] = d[3] = int32(lowest * x[1])
            add_fragment(at, lane, 0, b, d, opaque)
            if fragments > 1:
                add_fragment(at + fragment_bytes, lane, 1, b, d, opaque)
                at = at + unit // per_fragment * fragment_bytes
            columns = unit % per_fragment * unit_columns
            load_scales(at, lane, columns // run, f)
            for side in range(2):
                value = f[side] * whole(d[2 * side + 1], d[2 * side])
                if has_offset:
                    value = value - f[2 + side] * whole(x[1], x[0])
                sums[4 * fragment_row + 2 * side] += value * size

    return multiply_pair


@cache
def gatherer(stage: GemvStage) -> Any:
    """The device function that adds up the sums of the lanes with the same g."""
    count = 2 * stage.fragment_rows

    @inlined
    def gather(sums: Any) -> None:
        for i in range(count):
            sums[2 * i] += cuda.shfl_xor_sync(ALL_LANES, sums[2 * i], 1)
            sums[2 * i] += cuda.shfl_xor_sync(ALL_LANES, sums[2 * i], 2)

    return gather
