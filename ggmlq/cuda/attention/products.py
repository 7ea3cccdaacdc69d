"""Products of a warp by ``mma``: sixteen rows of queries times keys, and weights times values.

A lane 4 g + t has rows g and g + 8. Of the scores it has four numbers for each eight positions: positions
2 t and 2 t + 1 of row g, then of row g + 8. Two such fours, rounded to 16 bits, are at once the wide operand
of the next ``mma``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, codes8, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes8 import mma_f16, product_of_halves
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32
from .codes import ZEROS
from .plan import EDGE, Plan, row_bytes
from .unrolled import unrolled

# Products of a warp with blocks of q8_0 and q4_0, decoded in registers; for few rows of queries.
#
# products.py reads tiles of halves, which other code has decoded into shared memory. Here a lane takes bytes
# of blocks as they lie, and makes the narrow operand of ``mma`` itself:
#
#     scores    lane 4 g + t has eight codes of position g: neighbours, or two fours sixteen columns apart
#     values    it has codes of columns 2 g, 2 g + 1, and 16 columns on, of positions 2 t, 2 t + 1, and 8 on
#
# A product sums over columns, or positions, in any order, as long as the other operand has the same. A byte
# in a half without other bits is that number × 2**-24, and stays exact when the zero of the codes is taken
# off. Scales of keys are multiplied with the sums of a block, scales of values with the weights of their
# positions.

BLOCK, CODES_AT = 32, 2  # columns of a block; offset of its codes, behind the scale
LAST_PLACE = 24  # powers of two by which a code in a half is too small
# Powers of two that weights are multiplied by, so that few of their products with scales are too small for a
# half. None is too large: no value exceeds 65504, so scales are up to 65504 / 127 and 65504 / 8.
LIFTS = {"q8_0": 6, "q4_0": 2}


@inlined
def no_place(lane: Any, pitch: Any) -> Any:
    """The offset of a lane in an operand in which it finds its places itself."""
    return uint32(0)


@inlined
def two_pairs(word: Any) -> Any:
    """Bytes 0 and 1, then 2 and 3 of a word as halves without other bits."""
    permute = bf16x2.permute
    return permute(word, uint32(0), uint32(0x4140)), permute(word, uint32(0), uint32(0x4342))


@cache
def code_pairs(name: str) -> Any:
    """The device function for pairs of halves of two words: four of the first, then four of the second.

    Of q4_0 both words are the same one, of which the first four are the low bits.
    """
    zero, sub = np.uint32(ZEROS[name] * 0x00010001), halves.sub

    @inlined
    def pairs(first: Any, second: Any) -> Any:
        if name == "q8_0":
            first, second = first ^ uint32(0x80808080), second ^ uint32(0x80808080)
        else:
            first, second = first & uint32(0x0F0F0F0F), second >> uint32(4) & uint32(0x0F0F0F0F)
        (a, b), (c, d) = two_pairs(first), two_pairs(second)
        return sub(a, zero), sub(b, zero), sub(c, zero), sub(d, zero)

    return pairs


# --- scores -----------------------------------------------------------------------------------


@cache
def word_taker(name: str, even: bool) -> Any:
    """The device function for a lane's words of codes; those of ``even`` blocks begin within a word."""
    take4, permute, wide = bf16x2.take4, bf16x2.permute, name == "q8_0"

    @inlined
    def take(block: Any, t: Any) -> Any:
        at = block + t * uint32(8 if wide else 4) + uint32(0 if even else CODES_AT)
        first, second = take4(at), uint32(0)
        if wide or even:
            second = take4(at + uint32(4))
        if even:
            third = take4(at + uint32(8)) if wide else uint32(0)
            first, second = permute(first, second, uint32(0x5432)), permute(second, third, uint32(0x5432))
        return first, second if wide else first

    return take


@cache
def block_scorer(plan: Plan, even: bool) -> Any:
    """The device function that adds the products of one block's columns to scores of sixteen positions."""
    name, length, pitch = plan.k, row_bytes(plan.k, plan.width), plan.pitch(plan.width)
    take, pairs, wide = word_taker(name, even), code_pairs(name), name == "q8_0"
    take2, take8, take16, half_value, fma = halves.take2, bf16x2.take8, ptx.take16, ptx.half_value, ptx.fma

    @inlined
    def queries_of(at: Any) -> Any:
        if wide:
            v = take16(at)
            return uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        first, second = take8(at), take8(at + uint32(EDGE * 2))
        return first[0], first[1], second[0], second[1]

    @inlined
    def add(queries: Any, keys: Any, block: Any, s: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        q_at = queries + g * uint32(pitch) + t * uint32(16 if wide else 8)
        low, high = queries_of(q_at), queries_of(q_at + uint32(8 * pitch))
        none = float32(0)
        for half in range(2):
            row = keys + block + uint32(8 * half * length)
            first, second = take(row + g * uint32(length), t)
            b0, b1, b2, b3 = pairs(first, second)
            v = mma_f16(low[0], high[0], low[1], high[1], b0, b1, none, none, none, none)
            v = mma_f16(low[2], high[2], low[3], high[3], b2, b3, v[0], v[1], v[2], v[3])
            at = row + t * uint32(2 * length)
            d0, d1 = half_value(take2(at)), half_value(take2(at + uint32(length)))
            i = 4 * half
            s[i], s[i + 1] = fma(d0, v[0], s[i]), fma(d1, v[1], s[i + 1])
            s[i + 2], s[i + 3] = fma(d0, v[2], s[i + 2]), fma(d1, v[3], s[i + 3])

    return add


@cache
def block_row_scorer(plan: Plan) -> Any:
    """The device function ``score(queries, keys, s)``: scores of sixteen rows and a warp's sixteen positions.

    ``queries``, ``keys``: addresses of the first rows.
    """
    assert plan.span == EDGE
    add_even, add_odd, mul = block_scorer(plan, True), block_scorer(plan, False), ptx.mul
    pairs, size, whole = plan.width // (2 * BLOCK), row_bytes(plan.k, BLOCK), float32(2.0**LAST_PLACE)

    @inlined
    def score(queries: Any, keys: Any, s: Any) -> None:
        for i in range(8):
            s[i] = float32(0)
        for pair in range(pairs):
            at, block = queries + uint32(pair) * uint32(4 * BLOCK), uint32(pair) * uint32(2 * size)
            add_even(at, keys, block, s)
            add_odd(at + uint32(2 * BLOCK), keys, block + uint32(size), s)
        for i in range(8):
            s[i] = mul(s[i], whole)

    return score


# --- values -----------------------------------------------------------------------------------


@cache
def block_row_mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights × values to a warp's sums.

    ``values``: the address of the first row. Sums are too small by 24 powers of two less the type's lift. Of
    sixteen columns a lane has 4 t … 4 t + 3: the even ones in four sums of rows g and g + 8, the odd ones in
    the next four.
    """
    name, length, size = plan.v, row_bytes(plan.v, plan.width_v), row_bytes(plan.v, BLOCK)
    take2, permute, pairs = halves.take2, bf16x2.permute, code_pairs(name)
    mul, narrowed, mul_halves, wide = ptx.mul, halves.narrowed, product_of_halves, name == "q8_0"
    lifted = float32(2.0 ** LIFTS[name])

    @inlined
    def two_rows(at: Any) -> Any:
        """Codes of columns 2 g, 2 g + 1 of two rows, and of those sixteen columns on."""
        first = permute(take2(at), take2(at + uint32(length)), uint32(0x5140))
        second = first
        if wide:
            at += uint32(EDGE)
            second = permute(take2(at), take2(at + uint32(length)), uint32(0x5140))
        return pairs(first, second)

    @inlined
    def scales_of(at: Any) -> Any:
        return permute(take2(at), take2(at + uint32(length)), uint32(0x5410))

    def one(b: Any, a: Any, places: Any, o: Any) -> None:
        codes, scales = places[0] + uint32(b * size), places[1] + uint32(b * size)
        d, e = scales_of(scales), scales_of(scales + uint32(8 * length))
        a0, a1, a2, a3 = mul_halves(a[0], d), mul_halves(a[1], d), mul_halves(a[2], e), mul_halves(a[3], e)
        w = cuda.local.array(8, uint32)
        w[0], w[1], w[2], w[3] = two_rows(codes)
        w[4], w[5], w[6], w[7] = two_rows(codes + uint32(8 * length))
        for j in range(4):
            n = 16 * b + 4 * j
            v = mma_f16(a0, a1, a2, a3, w[j], w[4 + j], o[n], o[n + 1], o[n + 2], o[n + 3])
            o[n], o[n + 1], o[n + 2], o[n + 3] = v[0], v[1], v[2], v[3]

    all_blocks = unrolled(plan.width_v // BLOCK, one)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        a, places = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
        for i in range(4):
            a[i] = narrowed(mul(s[2 * i], lifted), mul(s[2 * i + 1], lifted))
        places[1] = values + t * uint32(2 * length)
        places[0] = places[1] + g * uint32(2) + uint32(CODES_AT)
        all_blocks(0, a, places, o)

    return mix


def multiplier(name: str) -> Any:
    """The ``mma`` for a type's tiles."""
    return bf16x2.mma if name == "bf16" else codes8.mma_f16


@inlined
def query_place(lane: Any, pitch: Any) -> Any:
    """The offset of the row that a lane names for the wide operand."""
    row = (lane & uint32(7)) + (lane & uint32(8))
    return row * uint32(pitch) + (lane >> uint32(4)) * uint32(16)


@inlined
def key_place(lane: Any, pitch: Any) -> Any:
    """The offset of the row that a lane names for sixteen keys."""
    row = (lane & uint32(7)) + (lane >> uint32(4)) * uint32(8)
    return row * uint32(pitch) + (lane >> uint32(3) & uint32(1)) * uint32(16)


@cache
def clearer(eights: int) -> Any:
    """The device function that sets so many times eight numbers to zero."""

    def clear(j: Any, s: Any) -> None:
        for i in range(8):
            s[8 * j + i] = float32(0)

    return unrolled(eights, clear)


@cache
def scorer(plan: Plan) -> Any:
    """The device function ``score(queries, keys, s)``: scores of a warp's rows and positions."""
    groups, steps, pitch = plan.span // EDGE, plan.width // EDGE, plan.pitch(plan.width)
    mma, load, add = multiplier(plan.k), halves.load_matrices, ptx.add

    def sixteen(j: Any, a: Any, keys: Any, s: Any) -> None:
        b = load(keys + uint32(j * EDGE * pitch))
        o = 8 * j
        v = mma(a[0], a[1], a[2], a[3], b[0], b[1], s[o], s[o + 1], s[o + 2], s[o + 3])
        s[o], s[o + 1], s[o + 2], s[o + 3] = v[0], v[1], v[2], v[3]
        v = mma(a[0], a[1], a[2], a[3], b[2], b[3], s[o + 4], s[o + 5], s[o + 6], s[o + 7])
        s[o + 4], s[o + 5], s[o + 6], s[o + 7] = v[0], v[1], v[2], v[3]

    all_positions, one = unrolled(groups, sixteen), unrolled(1, sixteen)

    clear_all = clearer(groups)

    @inlined
    def score(queries: Any, keys: Any, s: Any) -> None:
        clear_all(0, s)
        for step in range(steps):
            a = load(queries + uint32(step) * uint32(2 * EDGE))
            all_positions(0, a, keys + uint32(step) * uint32(2 * EDGE), s)

    @inlined
    def score_in_two(queries: Any, keys: Any, s: Any) -> None:
        other = cuda.local.array(8, float32)
        clear_all(0, s)
        clear_all(0, other)
        for step in range(0, steps, 2):
            at = uint32(step) * uint32(2 * EDGE)
            a, b = load(queries + at), load(queries + at + uint32(2 * EDGE))
            one(0, a, keys + at, s)
            one(0, b, keys + at + uint32(2 * EDGE), other)
        for i in range(8):
            s[i] = add(s[i], other[i])

    return score_in_two if groups == 1 and steps % 2 == 0 else score


@cache
def mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights times values to the sums of a warp's rows."""
    groups, columns = plan.span // EDGE, plan.width_v // EDGE
    pitch = plan.pitch(plan.width if plan.shared else plan.width_v)
    name = plan.k if plan.shared else plan.v
    mma, load = multiplier(name), halves.load_transposed
    together = next(n for n in (4, 2, 1) if columns % n == 0)
    narrowed = bf16x2.narrowed if name == "bf16" else halves.narrowed

    def sixteens(first: Any, a0: Any, a1: Any, a2: Any, a3: Any, values: Any, o: Any) -> None:
        for i in range(together):
            j = first + i
            b = load(values + uint32(j * 2 * EDGE))
            n = 8 * j
            v = mma(a0, a1, a2, a3, b[0], b[1], o[n], o[n + 1], o[n + 2], o[n + 3])
            o[n], o[n + 1], o[n + 2], o[n + 3] = v[0], v[1], v[2], v[3]
            v = mma(a0, a1, a2, a3, b[2], b[3], o[n + 4], o[n + 5], o[n + 6], o[n + 7])
            o[n + 4], o[n + 5], o[n + 6], o[n + 7] = v[0], v[1], v[2], v[3]

    all_columns = unrolled(columns // together, sixteens, together)

    def group(j: Any, s: Any, values: Any, o: Any) -> None:
        i = 8 * j
        a0, a1 = narrowed(s[i], s[i + 1]), narrowed(s[i + 2], s[i + 3])
        a2, a3 = narrowed(s[i + 4], s[i + 5]), narrowed(s[i + 6], s[i + 7])
        all_columns(0, a0, a1, a2, a3, values + uint32(j * EDGE * pitch), o)

    all_groups = unrolled(groups, group)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        all_groups(0, s, values, o)

    return mix
