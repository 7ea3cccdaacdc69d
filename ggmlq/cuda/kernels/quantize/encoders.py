"""The GPU's encoders of formats, four threads a block of 32 values; they write the CPU's bytes.

``encode(v, part, at, live)``: a thread has eight values v of a block, and writes its part of the block that
begins at ``at``, where ``live``. It returns the bits of the scale, which tell what is not finite (_block.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....formats import FORMATS, Format
from ....formats._levels import LEVELS, MIDDLES
from ....formats._search import TINY
from ....formats.iq4_nl import QS as IQ4_NL_QS
from ....formats.mxfp4 import QS as MXFP4_QS
from ....formats.q4_0 import QS as Q4_0_QS
from ....formats.q4_1 import QS as Q4_1_QS
from ....formats.q5_0 import QH as Q5_0_QH
from ....formats.q5_0 import QS as Q5_0_QS
from ....formats.q5_1 import QH as Q5_1_QH
from ....formats.q5_1 import QS as Q5_1_QS
from ....formats.q8_0 import QS as Q8_0_QS
from ....formats.q8_1 import DTYPE as Q8_1
from ....formats.q8_1 import QS as Q8_1_QS
from ...driver.launch import Kernel, family
from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.codes8 import size_of
from ...intrinsics.lane import ALL_LANES
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ._block import (
    LANES,
    RUN,
    VALUES,
    block_kernel,
    extreme,
    fifth_bits,
    half_away,
    highest,
    inverse,
    largest_size,
    lowest,
    nibbles,
    store_word,
    sum_of_codes,
    sum_of_values,
    two_words,
)

# --- q4_0, q5_0 ------------------------------------------------------------------------------

# The extreme value gets code 0, so d is that value / -8, or / -16; see formats/q4_0.py, and formats/q5_0.py
# for the fifth bits, which are stored apart.


@inlined
def code_all(q: Any, v: Any, d: Any, highest: Any) -> None:
    """Codes up to ``highest`` with the zero in the middle; all 0 where 1 / d overflows."""
    per = inverse(d)
    middle = float32(highest / 2 + 1) if per != float32(0) or d == float32(0) else float32(0)
    for i in range(VALUES):
        steps = ptx.add(ptx.mul(v[i], per), middle)
        q[i] = ptx.truncated(ptx.smaller(steps, float32(highest)))


def symmetric_encoder(highest: int, qs: int, qh: int | None = None) -> Any:
    """The encoder of q4_0 and q5_0: codes up to ``highest``, offsets of nibbles and of fifth bits."""
    per_extreme, five = float32(-2 / (highest + 1)), qh is not None

    @inlined
    def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
        # adding +0 makes the extreme of a block of -0.0 a +0.0; a product with a power of two is a quotient
        d = ptx.mul(ptx.add(extreme(v, part), float32(0)), per_extreme)
        q = cuda.local.array(VALUES, int32)
        code_all(q, v, d, highest)
        if five:
            near, far = two_words(q)
            scale, bits = ptx.half_bits(d), fifth_bits(near, far, part)
        else:
            scale = ptx.half_bits(d)
            near, far = two_words(q)
        if live:
            store_word(at + qs + uint64(part) * 4, nibbles(near, far))
            if part == 0:
                ptx.store2(at, scale)
                if five:
                    store_word(at + qh, bits)
        return scale

    return encode


# --- q4_1, q5_1 ------------------------------------------------------------------------------

# Codes count steps from the lowest value; the layouts are in formats/q4_1.py and formats/q5_1.py.


@inlined
def scaled(v: Any, low: Any, most: Any) -> Any:
    """The size of a step if ``most`` of them reach from the lowest value to the highest."""
    return ptx.div(ptx.add(ptx.sub(highest(v), low), float32(0)), float32(most))  # +0: never -0.0


@inlined
def steps(value: Any, low: Any, per: Any) -> Any:
    """The number of steps above the lowest value, and a half: to be truncated."""
    return ptx.add(ptx.mul(ptx.sub(value, low), per), float32(0.5))


def offset_encoder(most: int, qs: int, qh: int | None = None) -> Any:
    """The encoder of q4_1 and q5_1: codes up to ``most``, offsets of nibbles and of fifth bits."""
    five = qh is not None

    @inlined
    def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
        low = lowest(v, part)
        d = scaled(v, low, most)
        per = inverse(d)
        q = cuda.local.array(VALUES, int32)
        for i in range(VALUES):
            count = steps(v[i], low, per)
            q[i] = ptx.truncated(count if five else ptx.smaller(count, float32(most)))
        if five:
            near, far = two_words(q)
            scale, least = ptx.half_bits(d), ptx.half_bits(low)
            bits = fifth_bits(near, far, part)
        else:
            scale, least = ptx.half_bits(d), ptx.half_bits(low)
            near, far = two_words(q)
        if live:
            ptx.store4(at + qs + uint64(part) * 4, nibbles(near, far))
            if part == 0:
                ptx.store4(at, ptx.low_halves(scale, least))
                if five:
                    ptx.store4(at + qh, bits)
        return max(uint32(scale & 0x7C00), uint32(least & 0x7C00))

    return encode


# --- q8_0, q8_1 ------------------------------------------------------------------------------

# Codes x / (amax / 127), halves away from zero; q8_1 has the block's sum beside the scale: formats/q8_0.py,
# formats/q8_1.py.
#
# Programs differ in how they divide and round and in what they store as the sum. ``gq.quantize`` writes
# ``ggml-ref``; llama.cpp's CUDA backend makes ``ggml-mmvq`` of activations, for products of up to 8 rows.


@inlined
def by_the_inverse(value: Any, d: Any, per: Any) -> Any:
    """The code of a value by multiplication: value × ``per``, the inverse of d."""
    return half_away(ptx.mul(value, per))


@inlined
def by_the_scale(value: Any, d: Any, per: Any) -> Any:
    """The code of a value by division: value / d, or 0 if d is 0, as where the whole block is."""
    v = ptx.div(value, d)
    return min(max(half_away(v if d != float32(0) else float32(0)), int32(-127)), int32(127))


@inlined
def sum_of_decoded(v: Any, q: Any, d: Any) -> Any:
    """The sum of a block's codes times d."""
    return ptx.mul(float32(sum_of_codes(q)), d)


@inlined
def sum_of_floats(v: Any, q: Any, d: Any) -> Any:
    """The sum of a block's values."""
    return sum_of_values(v)


def q8_encoder(code: Any, qs: int, block_sum: Any = None) -> Any:
    """The encoder of q8_0, or with ``block_sum`` of q8_1."""
    has_sum = block_sum is not None
    # Blocks of q8_0 have 34 bytes, and begin at even addresses.
    store, block_sum = (ptx.store4, block_sum) if has_sum else (store_word, sum_of_floats)

    @inlined
    def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
        d = ptx.div(largest_size(v), float32(127))
        per = inverse(d)
        q = cuda.local.array(VALUES, int32)
        for i in range(VALUES):
            q[i] = code(v[i], d, per)
        s = block_sum(v, q, d) if has_sum else float32(0)
        scale, sum_bits = ptx.half_bits(d), ptx.half_bits(s)
        near, far = two_words(q)
        if live:
            codes = at + qs + uint64(part) * 4
            store(codes, near)
            store(codes + 16, far)
            if part == 0:
                if has_sum:
                    ptx.store4(at, ptx.low_halves(scale, sum_bits))
                else:
                    ptx.store2(at, scale)
        return max(uint32(scale & 0x7C00), uint32(sum_bits & 0x7C00)) if has_sum else scale

    return encode


# --- iq4_nl ----------------------------------------------------------------------------------

# Sixteen scales are tried, a quarter by each thread; see formats/iq4_nl.py.
#
# The sums of a try run over all 32 values in ggml's order, so each thread gets them all; which try is best
# is found in order too. Products and sums are rounded one after the other, never fused.

TRIES = 16
FIRST = float(LEVELS[0])
EDGES = [float32(edge) for edge in MIDDLES.tolist()]


def nearest_number(numbers: Any) -> Any:
    """The device function that gives the number of the level nearest to a value; NaN is above all.

    A step for each edge, since a look-up in a table of edges would go to memory.
    """
    first = numbers[0]

    @inlined
    def lowest(v: Any) -> Any:
        return first

    nearest = lowest
    for edge, number in zip(EDGES, numbers[1:], strict=True):
        nearest = _beyond(nearest, edge, number)
    return nearest


def _beyond(below: Any, edge: Any, number: Any) -> Any:
    @inlined
    def nearest(v: Any) -> Any:
        return below(v) if v < edge else number

    return nearest


rank = nearest_number([int32(i) for i in range(16)])
level = nearest_number([float32(value) for value in LEVELS.tolist()])


@inlined
def whole_block(all_values: Any, v: Any) -> None:
    """The 32 values of a block, of which each of its threads has eight."""
    first = int32(uint32(cuda.threadIdx.x) & 28)
    for i in range(RUN):
        value = v[(i & 3) + 4 * (i >> 4)]
        all_values[i] = cuda.shfl_sync(ALL_LANES, value, int32(first + int32((i & 15) >> 2)))


@inlined
def start_of(number: Any, largest: Any) -> Any:
    """The inverse scale of a try: the first from the extreme value, the others beside it."""
    if number == int32(0):
        return ptx.div(float32(1), ptx.div(-largest, float32(FIRST)))
    return ptx.div(ptx.add(float32(int32(number - int32(8))), float32(FIRST)), largest)


@inlined
def best_scale(x: Any, part: Any, largest: Any) -> Any:
    """The scale of the best of sixteen tries, each refitted to the levels that it gives."""
    scale, best = float32(0), float32(0)
    first = int32(uint32(cuda.threadIdx.x) & 28)
    for round_number in range(TRIES // LANES):
        inverse = start_of(int32(int32(LANES * round_number) + int32(part)), largest)
        lx, l2 = float32(0), float32(0)
        for i in range(RUN):
            this = level(ptx.mul(inverse, x[i]))
            weighted = ptx.mul(ptx.mul(x[i], x[i]), this)
            lx, l2 = ptx.add(lx, ptx.mul(weighted, x[i])), ptx.add(l2, ptx.mul(weighted, this))
        for lane in range(LANES):  # the tries of this round, in order
            a = cuda.shfl_sync(ALL_LANES, lx, int32(first + int32(lane)))
            b = cuda.shfl_sync(ALL_LANES, l2, int32(first + int32(lane)))
            if b > float32(0) and ((round_number == 0 and lane == 0) or ptx.mul(a, a) > ptx.mul(best, b)):
                scale = ptx.div(a, b)
                best = ptx.mul(scale, a)
    return scale


@inlined
def encode_iq4_nl(v: Any, part: Any, at: Any, live: Any) -> Any:
    largest = extreme(v, part)
    x = cuda.local.array(RUN, float32)
    whole_block(x, v)
    scale = best_scale(x, part, largest)
    if abs(largest) < float32(TINY):
        scale = float32(0)
    inverse = ptx.div(float32(1), scale) if scale != float32(0) else float32(0)
    q = cuda.local.array(VALUES, int32)
    for i in range(VALUES):
        q[i] = rank(ptx.mul(inverse, v[i]))
    bits = ptx.half_bits(scale)
    near, far = two_words(q)
    if live:
        store_word(at + IQ4_NL_QS + uint64(part) * 4, nibbles(near, far))
        if part == 0:
            ptx.store2(at, bits)
    return bits


# --- mxfp4 -----------------------------------------------------------------------------------

# A power of two as scale, the nearest of eight magnitudes; see formats/mxfp4.py.
#
# The exponent is floor(log2(amax)) with log2 rounded to float32, so just below a power of two it may
# already be the next one. How far below depends on the exponent: a table made with the CPU's own logarithm
# says how far.

LOWEST = -149  # exponent of the smallest float32
STEPS = 128  # so far below a power of two it certainly counts as below


def _first_that_counts_as_next() -> Any:
    """For each exponent, the first significand of 24 bits whose rounded logarithm is the next integer."""
    exponents = np.arange(LOWEST, 128)[:, None]
    significands = np.arange((1 << 24) - STEPS, 1 << 24)
    log2 = np.log2(np.ldexp(significands.astype(np.float64), exponents - 23)).astype(np.float32)
    return ((1 << 24) - (np.floor(log2) > exponents).sum(axis=1)).astype(np.int32)


NEXT = _first_that_counts_as_next()


@inlined
def floor_log2(value: Any) -> Any:
    """floor(float32(log2(value))) of a positive float."""
    bits = ptx.bits_of(value)
    shift = int32(0)
    if bits < 1 << 23:  # subnormal: its exponent is found in a number 2**24 times as large
        bits = ptx.bits_of(ptx.mul(value, float32(1 << 24)))
        shift = int32(24)
    exponent = int32(bits >> 23) - int32(127) - shift
    significand = int32(bits & 0x7FFFFF) | int32(0x800000)
    return exponent + int32(significand >= NEXT[exponent - LOWEST])


@inlined
def exponent_of(value: Any) -> Any:
    """The block's exponent: the floor of log2, read from the exponent bits where they suffice."""
    bits = ptx.bits_of(value)
    exponent = int32(bits >> 23) - int32(127)
    if exponent < int32(-126) or uint32(bits & 0x7FFFFF) >= (1 << 23) - STEPS:
        exponent = floor_log2(value)
    return exponent


@inlined
def code(value: Any, per: Any, most: Any) -> Any:
    """The nearest level's code in the four highest bits; a tie goes to the smaller level.

    In u the levels are 0 0.5 1 1.5 2 3 4 6: from 1 on a bit of exponent and one of significand
    count them, and so they do below 1 in (u + 1) / 2. That is rounded up, as rounding to a tie
    would hide that u lies above it.
    """
    u = ptx.mul(abs(value), per)
    u = ptx.smaller(ptx.larger(u, ptx.fma_up(u, float32(0.5), float32(0.5))), most)
    counted = uint32(uint32(ptx.bits_of(u) - 0x3EE00001) * 64)
    return uint32(counted | uint32(ptx.bits_of(value) & 0x80000000))


@inlined
def both(low: Any, high: Any) -> Any:
    """Two codes as the highest byte."""
    mask = uint32(0xF0000000)
    return uint32(uint32(high & mask) | uint32(uint32(low >> 4) & ~mask))


@inlined
def encode_mxfp4(v: Any, part: Any, at: Any, live: Any) -> Any:
    largest = largest_size(v)
    e = uint32(0)
    if largest > float32(0) and size_of(largest) < 0x7F800000:
        e = uint32(uint32(exponent_of(largest) + int32(125)) & 255)
    per = ptx.float_of(uint32(254 - e) << 23)  # half the inverse of the scale
    most = float32(3) if e == 253 else float32(6)  # 4 overflows
    q = cuda.local.array(4, uint32)
    for i in range(4):
        q[i] = both(code(v[i], per, most), code(v[i + 4], per, most))
    word = ptx.low_halves(ptx.high_bytes(q[0], q[1]), ptx.high_bytes(q[2], q[3]))
    sevens = uint32(0x77777777)
    word = uint32(word & uint32(uint32(uint32(word & sevens) + sevens) | sevens))  # no sign at a zero
    if live:
        for i in range(4):
            ptx.store1(at + uint64(MXFP4_QS + i) + uint64(part) * 4, uint32(word >> uint32(8 * i)))
        if part == 0:
            ptx.store1(at, e)
    return uint32(0x7C00) if e == 255 else uint32(0)


ENCODERS = {
    "q4_0": symmetric_encoder(15, Q4_0_QS), "q4_1": offset_encoder(15, Q4_1_QS),
    "q5_0": symmetric_encoder(31, Q5_0_QS, Q5_0_QH), "q5_1": offset_encoder(31, Q5_1_QS, Q5_1_QH),
    "q8_0": q8_encoder(by_the_inverse, Q8_0_QS), "iq4_nl": encode_iq4_nl, "mxfp4": encode_mxfp4,
}  # fmt: skip
Q8_1_ENCODERS = {
    "ggml-ref": q8_encoder(by_the_inverse, Q8_1_QS, sum_of_decoded),
    "ggml-mmvq": q8_encoder(by_the_scale, Q8_1_QS, sum_of_floats),
}


@family((FORMATS[name],) for name in ENCODERS)
def encoder(fmt: Format) -> Kernel:
    """The kernel that encodes a format."""
    return block_kernel(f"quantize {fmt.name}", ENCODERS[fmt.name], fmt.dtype.itemsize)


@family((arithmetic,) for arithmetic in Q8_1_ENCODERS)
def q8_1_kernel(arithmetic: str = "ggml-ref") -> Kernel:
    """The kernel that encodes q8_1 in an arithmetic."""
    return block_kernel(f"quantize q8_1 as {arithmetic}", Q8_1_ENCODERS[arithmetic], Q8_1.itemsize)
