"""The products of a stage of the gemv kernel: unpack, ``mma``, scale; how x lies in the columns of ``mma``.

    row_multiplier    eight rows of x or more: a column is a row of x
    run_multiplier    up to four rows: spare columns serve other runs of the same rows
    digit_multiplier  one row, as integers of 16 bits: a column is a byte of them in one run

All have weights as the wide operand, whose rows are 16 rows of weights: lane 4 g + t has rows g and g + 8.
Each has the same two parts, which batches() joins to the function that multiplies a stage. Names of a lane's
registers:

    take             x of a batch of fragments:  rows in the stage  →  b, and its sums over each run: x
    multiply_pair    two fragment rows:          words of a fragment  →  a, the codes of a sixteen
                                                 scales of rows g and g + 8, then offsets: f
                                                 mma: d += a · b over a run
                                                 sums += f · d − offset · x

d[0], d[1] are of row g and of columns 2 t, 2 t + 1 of b, d[2], d[3] of row g + 8; so are four of ``sums``, of
which each fragment row has four (for each tile of eight rows of x).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...intrinsics import bf16x2, codes8, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, four_into, g_and_t
from ...intrinsics.language import cuda, float32, int32, uint32
from ...intrinsics.tensor_cores import SIXTEENS
from ...layouts.codes import buffer_sizes, byte_unpacker, lowest_byte, word_loader
from ...layouts.groups import NAN
from ...layouts.layout import STEP
from ...layouts.operand import activation_summer, fragment_operand, run_operand
from ...layouts.scales import run_scale_loader
from .stages import TWO, GemvStage

FLOAT16 = 1  # the kind of float16, by its place in KINDS
MAX_ROWS_OF_RUNS = 4  # of x, that leave columns to spare


# --- products of eight rows of x or more --------------------------------------------------------


def batches(stage: GemvStage, fragments: int, take: Any, multiply_pair: Any) -> Any:
    """The device function that adds a span to a lane's sums, in one batch of fragments of a row or two.

    ``take`` (address of the stage, batch, lane, kind of x) gives what ``multiply_pair`` needs of the
    activations; this adds the products of two fragment rows.
    """
    batch_bytes, twice, four_rows = (
        fragments * stage.layout.fragment_bytes, stage.span > fragments, stage.fragment_rows > TWO
    )  # fmt: skip

    @inlined
    def multiply_batch(at: Any, which: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        activations = take(at, which, lane, kind)
        here = at + which * batch_bytes
        multiply_pair(here, 0, lane, activations, sums, opaque)
        if four_rows:
            multiply_pair(here, 1, lane, activations, sums, opaque)  # a loop is not always unrolled

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_batch(at, 0, lane, kind, sums, opaque)  # a loop over batches would not be unrolled
        if twice:
            multiply_batch(at, 1, lane, kind, sums, opaque)

    return multiply


class PairTakers(NamedTuple):
    """Device functions for four activations of a row, from a column on, as two pairs of bfloat16."""

    floats: Any  # (address of the row, column) -> those of float32
    bits: Any  # (address of the row, column) -> those of 16 bits, as they are
    change_halves: Any  # (kind, pairs, count): pairs of float16, where that is the kind, become bfloat16


@cache
def pair_takers() -> PairTakers:
    """The device functions for activations as they lie."""

    @inlined
    def take_floats(row_at: Any, column: Any) -> Any:
        v = ptx.take_floats(uint32(row_at + uint32(column << 2)))
        return bf16x2.narrowed(v[0], v[1]), bf16x2.narrowed(v[2], v[3])

    @inlined
    def take_bits(row_at: Any, column: Any) -> Any:
        w = ptx.take8(uint32(row_at + uint32(column << 1)))
        return w[0], w[1]

    @inlined
    def change_halves(kind: Any, pairs: Any, count: Any) -> None:
        if kind == FLOAT16:
            for i in range(count):
                low, high = codes8.half_values(pairs[i])
                pairs[i] = bf16x2.narrowed(low, high)

    return PairTakers(take_floats, take_bits, change_halves)


@cache
def activation_loader(stage: GemvStage) -> Any:
    """The device function that loads a lane's activations of a fragment: pairs of bfloat16, eight a tile.

    In rows of 16 bits without more room, chunk c of row r lies at c ^ 2 (r % 4), so that loads have no bank
    conflicts.
    """
    x_at, pitch, tiles = stage.x_at, stage.pitch, stage.tiles
    change_halves, pairs = pair_takers().change_halves, 8 * tiles

    @inlined
    def take_and_narrow(at: Any, fragment: Any, lane: Any, b: Any, kind: Any) -> None:
        g, t = g_and_t(lane)
        row_at = at + (x_at + fragment * 4 * STEP) + g * pitch + t * 16
        for s in range(4):
            v = ptx.take_floats(row_at + uint32(64 * s))
            b[2 * s], b[2 * s + 1] = bf16x2.narrowed(v[0], v[1]), bf16x2.narrowed(v[2], v[3])

    @inlined
    def take(at: Any, fragment: Any, lane: Any, b: Any, kind: Any) -> None:
        g, t = g_and_t(lane)
        row_at = at + (x_at + fragment * 2 * STEP) + g * pitch + (t & 1) * 8
        swap = (g & 3) << 1
        for s in range(4):
            place = ((uint32(2 * s) + (t >> 1)) ^ swap) << 4
            for tile in range(tiles):
                v = ptx.take8(row_at + place + uint32(8 * tile * pitch))
                b[8 * tile + 2 * s], b[8 * tile + 2 * s + 1] = v[0], v[1]
        change_halves(kind, b, pairs)

    return take_and_narrow if stage.floats else take


@cache
def row_multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span, 1 or 2 fragments of each fragment row, to a lane's sums."""
    layout, size, tiles = stage.layout, stage.size, stage.tiles
    count, values = buffer_sizes(layout)
    runs, scales, has_offset = layout.runs, layout.scales, layout.has_offset
    operand, sixteens = fragment_operand(layout, tiles), SIXTEENS // runs
    load_words, load_scales = operand.load_words, operand.load_scales
    unpack_sixteen, first_sums = operand.unpack_sixteen, operand.first_sums
    load, sum_of = activation_loader(stage), activation_summer(sixteens)
    x_count, d_count = 8 * tiles, 4 * tiles

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any) -> Any:
        b = cuda.local.array(x_count, uint32)
        x, start = cuda.local.array(x_count, float32), cuda.local.array(x_count, float32)
        load(at, which, lane, b, kind)
        for tile in range(tiles):
            for run in range(runs):
                i, first = 8 * tile + 2 * run, 8 * tile + 2 * run * sixteens
                if has_offset:
                    x[i], x[i + 1] = sum_of(b, first, bf16x2.ones)
                # ``d`` starts with what takes the excess of raised codes off (layouts/operand.py), or zero.
                start[i], start[i + 1] = first_sums(b, first, x[i], x[i + 1])
        return b, x, start

    @inlined
    def multiply_pair(here: Any, pair: Any, lane: Any, activations: Any, sums: Any, opaque: Any) -> None:
        b, x, start = activations
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        f, d = cuda.local.array(values, float32), cuda.local.array(d_count, float32)
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            load_words(here + uint32(fragment_row * size), lane, words)
            load_scales(here + uint32(fragment_row * size), lane, f)
            for run in range(runs):
                for tile in range(tiles):
                    i, j = 8 * tile + 2 * run, 4 * tile
                    d[j], d[j + 1], d[j + 2], d[j + 3] = start[i], start[i + 1], start[i], start[i + 1]
                for s in range(run * sixteens, run * sixteens + sixteens):
                    unpack_sixteen(words, s, a, opaque)
                    for tile in range(tiles):
                        tensor_cores.add_bf16(d, 4 * tile, a, 0, b, 8 * tile + 2 * s)
                for tile in range(tiles):
                    o, j, i = 4 * (fragment_row * tiles + tile), 4 * tile, 8 * tile + 2 * run
                    low, high = f[run], f[scales + run]
                    sums[o], sums[o + 2] = sums[o] + low * d[j], sums[o + 2] + high * d[j + 2]
                    sums[o + 1], sums[o + 3] = sums[o + 1] + low * d[j + 1], sums[o + 3] + high * d[j + 3]
                    if has_offset:
                        low, high = f[runs + run], f[scales + runs + run]
                        sums[o], sums[o + 2] = sums[o] - low * x[i], sums[o + 2] - high * x[i]
                        sums[o + 1] -= low * x[i + 1]
                        sums[o + 3] -= high * x[i + 1]

    return batches(stage, 1, take, multiply_pair)


@inlined
def keep_sums(sums: Any) -> None:
    """Each lane has its own sums."""


@cache
def lane_adder(stage: GemvStage, integers: bool = False) -> Any:
    """The device function that adds up the sums of the lanes with the same g and the same rows of x.

    ``integers``: of one row, each second sum is of nothing.
    """
    numbers, every, twice = stage.numbers, 2 if integers else 1, stage.columns <= 2

    @inlined
    def gather(sums: Any) -> None:
        for i in range(0, numbers, every):
            if twice:
                sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 1)
            sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 2)

    return gather


# --- products of up to four rows of x: spare columns of mma serve other runs ---------------------
#
# An operand of eight columns holds four runs of up to two rows, or two runs of four rows. Each column has the
# activations of one row in one run, and zeros elsewhere. So lane 4 g + t gets sums of one run alone, and
# makes the scales of that run alone:
#
#     column of mma    0      1      2      3      4      5      6      7
#     two rows of x    0, run 0      0, run 1      0, run 2      0, run 3
#                      1, run 0      …
#     lane 4 g + t     t = 0         t = 1         t = 2         t = 3


class RunBatch(NamedTuple):
    """The part of a stage that is multiplied at once: as many fragments as fill the operand with runs."""

    columns: int  # of a run: a lane has sums of two
    places: int  # runs that an operand has columns for
    sixteens: int  # of a run
    fragments: int
    passes: int  # of a fragment, which may have more runs than fit
    pass_runs: int  # runs of a pass

    @classmethod
    def of(cls, stage: GemvStage) -> RunBatch:
        """The batches of a stage."""
        columns, runs = max(stage.columns, 2), stage.layout.runs
        places = 8 // columns
        fragments = max(1, min(places // runs, stage.span))
        pass_runs = min(places, fragments * runs)
        return cls(columns, places, SIXTEENS // runs, fragments, max(1, runs // places), pass_runs)


@cache
def run_activations(stage: GemvStage) -> Any:
    """The device function that loads a batch's activations: of the lane's own run, and zeros for other runs.

    It gives registers of ``mma`` and sums of activations, two a pass.
    """
    batch, columns, pitch, x_at = RunBatch.of(stage), stage.columns, stage.pitch, stage.x_at
    sixteens, passes, pass_runs = batch.sixteens, batch.passes, batch.pass_runs
    shift, some_idle = batch.columns.bit_length() - 1, pass_runs < batch.places
    needs_sums = run_operand(stage.layout).needs_sums
    takers, sum_of = pair_takers(), activation_summer(sixteens)
    take_floats, take_bits, change_halves = takers.floats, takers.bits, takers.change_halves
    count, b_count, x_count = sixteens * passes, 8 * batch.fragments, 2 * passes
    numbers = 2 * count
    batch_columns, pass_columns = STEP * batch.fragments, 16 * pass_runs * sixteens

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any) -> Any:
        b, x = cuda.local.array(b_count, uint32), cuda.local.array(x_count, float32)
        for i in range(x_count):
            x[i] = float32(0)
        g, t = g_and_t(lane)
        lane_run, v = uint32(g >> shift), cuda.local.array(numbers, uint32)
        run = min(lane_run, uint32(pass_runs - 1)) if some_idle else lane_run
        row_at = at + x_at + (g & columns - 1) * pitch
        first = uint32(which * batch_columns + t * 4 + run * (16 * sixteens))
        if kind == 0:
            for i in range(count):
                column = uint32(first + uint32(i // sixteens * pass_columns + i % sixteens * 16))
                v[2 * i], v[2 * i + 1] = take_floats(row_at, column)
        else:
            for i in range(count):
                column = uint32(first + uint32(i // sixteens * pass_columns + i % sixteens * 16))
                v[2 * i], v[2 * i + 1] = take_bits(row_at, column)
            change_halves(kind, v, numbers)
        if some_idle and lane_run >= pass_runs:
            for i in range(numbers):
                v[i] = uint32(0)
        for i in range(passes):
            if needs_sums:
                x[2 * i], x[2 * i + 1] = sum_of(v, 2 * sixteens * i, bf16x2.ones)
            for j in range(pass_runs):
                mask = uint32(0xFFFFFFFF) if lane_run == uint32(j) else uint32(0)
                for k in range(2 * sixteens):
                    b[2 * sixteens * (pass_runs * i + j) + k] = v[2 * sixteens * i + k] & mask
        return b, x

    return take


@cache
def run_multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span of all fragment rows to a lane's sums, four for each of them."""
    batch, layout, size = RunBatch.of(stage), stage.layout, stage.size
    runs, fragment_bytes, fragments = layout.runs, layout.fragment_bytes, batch.fragments
    passes, pass_runs, some_idle = batch.passes, batch.pass_runs, batch.pass_runs < batch.places
    shift, pass_sixteens = batch.columns.bit_length() - 2, SIXTEENS // batch.passes
    count, _ = buffer_sizes(layout)
    operand = run_operand(layout)
    load_words, load_scales = operand.load_words, operand.load_scales
    unpack_sixteen, lowered = operand.unpack_sixteen, operand.lowered
    d_count, x_columns, has_offset = 4 * passes, min(stage.columns, 2), layout.has_offset

    @inlined
    def add_fragment(at: Any, lane: Any, b: Any, first: Any, d: Any, opaque: Any) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        load_words(at, lane, words)
        for s in range(4):
            unpack_sixteen(words, s, a, opaque)
            tensor_cores.add_bf16(d, s // pass_sixteens * 4, a, 0, b, first + 2 * s)

    @inlined
    def multiply_pair(here: Any, pair: Any, lane: Any, activations: Any, sums: Any, opaque: Any) -> None:
        (b, x), d, f = activations, cuda.local.array(d_count, float32), cuda.local.array(4, float32)
        lane_run = uint32((lane & 3) >> shift)
        if some_idle:
            lane_run = min(lane_run, uint32(pass_runs - 1))
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            at = here + uint32(fragment_row * size)
            for i in range(d_count):
                d[i] = float32(0)
            add_fragment(at, lane, b, 0, d, opaque)
            if fragments > 1:
                add_fragment(at + fragment_bytes, lane, b, 8, d, opaque)
                at = at + lane_run // runs * fragment_bytes
            for i in range(passes):
                load_scales(at, lane, uint32(uint32(i * pass_runs) + lane_run) % runs, f)
                for c in range(x_columns):
                    for side in range(2):
                        o, y = 4 * fragment_row + 2 * side + c, x[2 * i + c]
                        total = sums[o] + f[side] * lowered(y, d[4 * i + 2 * side + c])
                        sums[o] = total - f[2 + side] * y if has_offset else total

    return batches(stage, fragments, run_activations(stage), multiply_pair)


# --- products of one row of x: activations as integers of 16 bits --------------------------------
#
# Codes of weights become bytes with fewer instructions than floats, and ``mma`` of bytes takes 32 columns of
# K at once. So each 32 activations become integers, a power of two times theirs, and an integer two *digits*:
# the low byte with its sign, and what is left, 256 times less.
#
# A *unit* is a run of weights, or 32 columns where a run is longer. The operand's eight columns are two
# digits in four units, each zero in the columns of K of other units:
#
#     column of mma    0      1      2      3      4      5      6      7
#     digit            low    high   low    high   low    high   low    high
#     unit             0      0      1      1      2      2      3      3
#     lane 4 g + t     t = 0         t = 1         t = 2         t = 3
#
# So lane 4 g + t gets sums of digits and codes of unit t alone. It puts them together, and scales them by the
# weights' scale and the activations'.

UNITS_OF_AN_OPERAND = 4
POWER_COLUMNS = 32  # activations that share a power of two; columns of K in one mma
INTEGER_BITS = 13  # activations are integers times 2**(e - 13), where the largest is below 2**(e + 1)
MIN_EXPONENT, NOT_FINITE = 14, 255  # exponents of a float: whose unit is 2**-126, and of infinity and NaN
DIGIT = 256
ROUNDER = 1.5 * 2.0**23  # a float plus this has its nearest integer in its last bits
FLOAT_NAN = np.uint32(NAN)


class DigitBatch(NamedTuple):
    """The part of a stage that is multiplied at once: as many fragments as have four units."""

    unit: int  # columns of K
    fragments: int
    units: int  # fewer than there are places where a stage has one fragment
    products: int  # the ``mma`` of a batch for a fragment row

    @classmethod
    def of(cls, stage: GemvStage) -> DigitBatch:
        """The batches of a stage."""
        unit = min(stage.layout.run, POWER_COLUMNS)
        fragments = min(UNITS_OF_AN_OPERAND * unit // STEP, stage.span)
        return cls(unit, fragments, fragments * STEP // unit, fragments * STEP // POWER_COLUMNS)


@inlined
def power_of(exponent: Any) -> Any:
    """The factor that makes integers of activations, and the unit of these, by the largest one's exponent."""
    held = max(exponent, uint32(MIN_EXPONENT))
    factor, unit = uint32(254 + INTEGER_BITS - held) << 23, uint32(held - INTEGER_BITS) << 23
    return factor, unit if exponent < NOT_FINITE else FLOAT_NAN


@cache
def largest_exponent(unit: int) -> Any:
    """The device function that gives the exponent of the largest of 32 activations, which lanes share."""
    numbers = unit // 4

    @inlined
    def exponent(v: Any) -> Any:
        largest = int32(0)
        for i in range(numbers):
            largest = max(largest, int32(ptx.bits_of(v[i]) & 0x7FFFFFFF))
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 1))
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 2))
        if numbers == 4:  # the other half of the 32 is the next unit's
            largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 8))
        return uint32(largest) >> 23

    return exponent


@cache
def digit_activations(stage: GemvStage) -> Any:
    """The device function that loads a batch's activations: of the lane's own unit, zeros for other units.

    ``b``: registers of ``mma``. It gives the unit of the lane's integers, as a float.
    """
    batch, x_at = DigitBatch.of(stage), stage.x_at
    units, width, sixteens, batch_columns = batch.units, batch.unit, batch.unit // 16, STEP * batch.fragments
    exponent_of, some_idle = largest_exponent(batch.unit), batch.units < UNITS_OF_AN_OPERAND
    rounder, half_digit, numbers = float32(ROUNDER), float32(DIGIT // 2), 4 * sixteens

    @inlined
    def take_bits(row_at: Any, column: Any, kind: Any, v: Any, at: Any) -> None:
        pairs = ptx.take8(uint32(row_at + uint32(column << 1)))
        if kind == FLOAT16:
            v[at], v[at + 1] = codes8.half_values(pairs[0])
            v[at + 2], v[at + 3] = codes8.half_values(pairs[1])
        else:
            for i in range(2):
                v[at + 2 * i] = ptx.float_of(uint32(pairs[i] << 16))
                v[at + 2 * i + 1] = ptx.float_of(uint32(pairs[i] & 0xFFFF0000))

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any, b: Any) -> Any:
        g, t = g_and_t(lane)
        lane_unit, digit, v = g >> 1, g & 1, cuda.local.array(numbers, float32)
        unit = min(lane_unit, uint32(units - 1)) if some_idle else lane_unit
        row_at = at + x_at
        first = which * batch_columns + t * 4 + unit * width
        if kind == 0:
            for i in range(sixteens):
                column = first + uint32(16 * i)
                four_into(v, 4 * i, ptx.take_floats(uint32(row_at + uint32(column << 2))))
        else:
            for i in range(sixteens):
                take_bits(row_at, first + uint32(16 * i), kind, v, 4 * i)
        factor, size = power_of(exponent_of(v))
        scaled, start = ptx.float_of(factor), rounder + half_digit * float32(digit)
        picks = 0x40 + digit * 0x11  # the low byte of two words, or the next one
        for i in range(sixteens):
            w0 = ptx.bits_of(ptx.fma(v[4 * i], scaled, start))
            w1 = ptx.bits_of(ptx.fma(v[4 * i + 1], scaled, start))
            w2 = ptx.bits_of(ptx.fma(v[4 * i + 2], scaled, start))
            w3 = ptx.bits_of(ptx.fma(v[4 * i + 3], scaled, start))
            even, odd = ptx.permute(w0, w2, picks), ptx.permute(w1, w3, picks)
            word = ptx.permute(even, odd, uint32(0x5410))
            for j in range(units):
                b[j * sixteens + i] = word if lane_unit == uint32(j) else 0
        return ptx.float_of(size)

    return take


@inlined
def whole(high: Any, low: Any) -> Any:
    """The number of two sums: of high digits, and of low ones."""
    return float32(int32(high * int32(DIGIT) + low))


@cache
def digit_multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span of all fragment rows to a lane's sums, four for each of them."""
    batch, layout, size_of_row = DigitBatch.of(stage), stage.layout, stage.size
    load, mma, products = digit_activations(stage), tensor_cores.integer_mma("s8", "s8"), batch.products
    fragments, units, unit_columns = batch.fragments, batch.units, batch.unit
    count, fragment_bytes, run = 2 * products, layout.fragment_bytes, layout.run
    has_offset, lowest = layout.has_offset, int32(lowest_byte(layout))
    needs_sums = has_offset or lowest_byte(layout) != 0
    (words_count, _), load_words, unpack = buffer_sizes(layout), word_loader(layout), byte_unpacker(layout)
    load_scales, fragment_products, fragment_units = (
        run_scale_loader(layout), STEP // POWER_COLUMNS, STEP // batch.unit
    )  # fmt: skip

    @inlined
    def add_fragment(at: Any, lane: Any, which: Any, b: Any, d: Any, opaque: Any) -> None:
        words, a = cuda.local.array(words_count, uint32), cuda.local.array(4, int32)
        load_words(at, lane, words)
        for j in range(fragment_products):
            unpack(words, 2 * j, a, 0, opaque)
            unpack(words, 2 * j + 1, a, 2, opaque)
            i = 2 * (which * fragment_products + j)
            v = mma(a[0], a[1], a[2], a[3], int32(b[i]), int32(b[i + 1]), d[0], d[1], d[2], d[3])
            d[0], d[1], d[2], d[3] = v[0], v[1], v[2], v[3]

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any) -> Any:
        b, x = cuda.local.array(count, uint32), cuda.local.array(2, int32)
        size = load(at, which, lane, kind, b)
        size = cuda.shfl_sync(ALL_LANES, size, int32((lane & 3) << 3))  # of unit t
        x[0] = x[1] = int32(0)
        if needs_sums:  # of the digits
            one = int32(0x01010101)
            for j in range(products):
                v = mma(one, one, one, one, int32(b[2 * j]), int32(b[2 * j + 1]), x[0], x[1], x[0], x[1])
                x[0], x[1] = v[0], v[1]
        return b, x, size

    @inlined
    def multiply_pair(here: Any, pair: Any, lane: Any, activations: Any, sums: Any, opaque: Any) -> None:
        b, x, size = activations
        d, f = cuda.local.array(4, int32), cuda.local.array(4, float32)
        unit = min(lane & 3, uint32(units - 1))
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            at = here + uint32(fragment_row * size_of_row)
            d[0] = d[2] = int32(lowest * x[0])
            d[1] = d[3] = int32(lowest * x[1])
            add_fragment(at, lane, 0, b, d, opaque)
            if fragments > 1:
                add_fragment(at + fragment_bytes, lane, 1, b, d, opaque)
                at = at + unit // fragment_units * fragment_bytes
            columns = unit % fragment_units * unit_columns
            load_scales(at, lane, columns // run, f)
            for side in range(2):
                value = f[side] * whole(d[2 * side + 1], d[2 * side])
                if has_offset:
                    value = value - f[2 + side] * whole(x[1], x[0])
                sums[4 * fragment_row + 2 * side] += value * size

    return batches(stage, fragments, take, multiply_pair)


class Multiplier(NamedTuple):
    """The device functions that multiply a stage, and that add up the sums of lanes in the end."""

    multiply: Any  # (address of the stage, lane, kind of x, sums, opaque zero)
    gather: Any = keep_sums  # (sums)


def multiplier_of(stage: GemvStage, integers: bool = False) -> Multiplier:
    """The multiplier of a stage: ``integers``: of one row as integers of 16 bits."""
    if integers:
        return Multiplier(digit_multiplier(stage), lane_adder(stage, True))
    if stage.columns <= MAX_ROWS_OF_RUNS:
        return Multiplier(run_multiplier(stage), lane_adder(stage))
    return Multiplier(row_multiplier(stage))
