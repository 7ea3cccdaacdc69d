"""Products of turned_products.py with keys and values in blocks, decoded in registers. Lane 4 g + t:

    keys     eight codes of each of positions 2 g, 2 g + 1 of a block
    values   four columns of positions 4 t … 4 t + 3 of a block

Blocks lie as they were copied. A byte in a half without other bits is that number × 2**-24. The zero of keys'
codes is taken off before: products begin with minus the zero times the queries' sum. Two blocks begin at a
word together. The first has its scale in front of two codes of its first word, and its last two codes in
front of the scale of the second: lanes 0 take those four together.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, codes, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes8 import product_of_halves
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32
from .block_products import BLOCK, LAST_PLACE, LIFTS
from .codes import ZEROS
from .plan import Plan, row_bytes
from .products import multiplier
from .unrolled import unrolled

SMALLEST = 2.0**-LAST_PLACE
SIXTEENTH = np.uint32(halves.pair(1 / 16))  # upper four bits of a byte count sixteen times

# --- keys -------------------------------------------------------------------------------------


@inlined
def first_lane_picks(place: Any) -> Any:
    """The bytes that ``permute`` picks of a lane's word and the first block's last: lanes 0 half of each."""
    return uint32(0x5432) if place == uint32(0) else uint32(0x3210)


@cache
def block_query_taker(plan: Plan) -> Any:
    """The device function ``take(queries, q, z)``: a lane's columns as keys' codes lie, four pairs a block.

    ``z``: two floats a block.
    """
    pitch, wide, zero = plan.pitch(plan.width), plan.k == "q8_0", ZEROS[plan.k]
    take4, permute, mul_halves, mma = bf16x2.take4, bf16x2.permute, product_of_halves, multiplier("f16")
    low, high = np.uint32(halves.pair(-zero * SMALLEST)), np.uint32(halves.pair(-16 * zero * SMALLEST))
    high = low if wide else high

    @inlined
    def place_codes(q: Any, n: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        """Neighbours for bytes; for fours of a word columns two apart, the upper ones a sixteenth."""
        if wide:
            q[n], q[n + 1], q[n + 2], q[n + 3] = a, b, c, d
        else:
            evens, odds = uint32(0x5410), uint32(0x7632)
            q[n], q[n + 1] = permute(a, b, evens), permute(a, b, odds)
            q[n + 2] = mul_halves(permute(c, d, evens), SIXTEENTH)
            q[n + 3] = mul_halves(permute(c, d, odds), SIXTEENTH)

    @inlined
    def set_zero(q: Any, n: Any, z: Any, m: Any) -> None:
        none = float32(0)
        v = mma(low, low, low, low, q[n], q[n + 1], none, none, none, none)
        v = mma(high, high, high, high, q[n + 2], q[n + 3], v[0], v[1], v[2], v[3])
        z[m], z[m + 1] = v[0], v[1]

    def pair(j: Any, row: Any, t: Any, q: Any, z: Any) -> None:
        # columns of the first block: from 4 t - 2, of lanes 0 columns 0, 1, 30, 31 (of fours 0, 1, 14, 15)
        at = row + uint32(4 * BLOCK * j)
        first = at + (t * uint32(8) - uint32(4) if t != uint32(0) else uint32(0))
        beside = uint32(4) if t != uint32(0) else uint32(60 if wide else 28)
        second = first + uint32(32)
        if wide:
            second = at + uint32(28) + t * uint32(8)
            place_codes(
                q, 8 * j, take4(first), take4(first + beside), take4(second), take4(second + uint32(4))
            )
        else:
            place_codes(q, 8 * j, take4(first), take4(first + beside), take4(second), take4(second + beside))
        at += uint32(2 * BLOCK) + t * uint32(8)
        n, second = 8 * j + 4, at + uint32(32)
        place_codes(q, n, take4(at), take4(at + uint32(4)), take4(second), take4(second + uint32(4)))
        set_zero(q, 8 * j, z, 4 * j)
        set_zero(q, 8 * j + 4, z, 4 * j + 2)

    all_pairs = unrolled(plan.width // (2 * BLOCK), pair)

    @inlined
    def take(queries: Any, q: Any, z: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        all_pairs(0, queries + g * uint32(pitch), t, q, z)

    return take


@cache
def key_pairs(name: str) -> Any:
    """The device function for a lane's eight codes of a position as pairs of halves.

    Bytes of both words, or fours of the first: bytes 0 and 2, bytes 1 and 3, then the upper fours of them.
    """
    permute, none = bf16x2.permute, np.uint32(0)

    @inlined
    def of_bytes(first: Any, second: Any) -> Any:
        first, second = first ^ uint32(0x80808080), second ^ uint32(0x80808080)
        low, high = uint32(0x4140), uint32(0x4342)
        return (
            permute(first, none, low), permute(first, none, high),
            permute(second, none, low), permute(second, none, high),
        )  # fmt: skip

    @inlined
    def of_fours(first: Any, second: Any) -> Any:
        odd, low, high = first >> uint32(8), uint32(0x000F000F), uint32(0x00F000F0)
        return first & low, odd & low, first & high, odd & high

    return of_bytes if name == "q8_0" else of_fours


@cache
def block_scorer(plan: Plan) -> Any:
    """The device function ``score(keys, q, z, s)``: scores of eight rows and a warp's sixteen positions.

    ``keys``: the address of the first position.
    """
    length, size = row_bytes(plan.k, plan.width), row_bytes(plan.k, 2 * BLOCK)
    take4, permute, half_values, fma, mul = bf16x2.take4, bf16x2.permute, codes.half_values, ptx.fma, ptx.mul
    mma, pairs, wide, middle = multiplier("f16"), key_pairs(plan.k), plan.k == "q8_0", size // 8 * 4
    whole = float32(2.0**LAST_PLACE)

    @inlined
    def multiply(w: Any, n: Any, q: Any, z: Any, m: Any, d: Any, s: Any) -> None:
        """Words of both positions with queries from n on, sums that begin with z from m on."""
        a0, a1, a2, a3 = pairs(w[0], w[1])
        b0, b1, b2, b3 = pairs(w[2], w[3])
        v = mma(a0, b0, a1, b1, q[n], q[n + 1], z[m], z[m + 1], z[m], z[m + 1])
        v = mma(a2, b2, a3, b3, q[n + 2], q[n + 3], v[0], v[1], v[2], v[3])
        for i in range(2):
            for r in range(2):
                s[2 * r + i] = fma(d[i], v[2 * i + r], s[2 * r + i])

    def pair(j: Any, keys: Any, places: Any, q: Any, z: Any, s: Any) -> None:
        w, x = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        d, e = cuda.local.array(2, float32), cuda.local.array(2, float32)
        for i in range(2):
            row = keys + uint32(j * size + i * length)
            at, last = row + places[0], take4(row + uint32(middle))
            w[2 * i], w[2 * i + 1] = permute(take4(at), last, places[1]), uint32(0)
            x[2 * i], x[2 * i + 1] = take4(at + uint32(middle + 4)), uint32(0)
            if wide:
                w[2 * i + 1] = take4(at + uint32(16))
                x[2 * i + 1] = take4(at + uint32(middle + 20))
            d[i], e[i] = half_values(take4(row))[0], half_values(last)[1]
        multiply(w, 8 * j, q, z, 4 * j, d, s)
        multiply(x, 8 * j + 4, q, z, 4 * j + 2, e, s)

    all_pairs = unrolled(plan.width // (2 * BLOCK), pair)

    @inlined
    def score(keys: Any, q: Any, z: Any, s: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        places = cuda.local.array(2, uint32)
        places[0], places[1] = t * uint32(4), first_lane_picks(t)
        for i in range(4):
            s[i] = float32(0)
        all_pairs(0, keys + g * uint32(2 * length), places, q, z, s)
        for i in range(4):
            s[i] = mul(s[i], whole)

    return score


# --- values -----------------------------------------------------------------------------------


@cache
def value_pairs(name: str) -> Any:
    """The device function ``pairs(w, a)``: a lane's words of four positions become eight pairs of positions.

    Pair 4 n + 2 j + i: column i of the first or second sixteen n, positions j and j + 2.
    Of q4_0 the second sixteen are sixteen times as large.
    """
    permute, sub, none = bf16x2.permute, halves.sub, np.uint32(0)
    zero, upper_zero = np.uint32(ZEROS[name] * 0x00010001), np.uint32(16 * ZEROS[name] * 0x00010001)

    @inlined
    def of_bytes(w: Any, a: Any) -> None:
        for j in range(2):
            for n in range(2):
                both = permute(w[j], w[j + 2], uint32(0x7362) if n else uint32(0x5140)) ^ uint32(0x80808080)
                a[4 * n + 2 * j] = sub(permute(both, none, uint32(0x4140)), zero)
                a[4 * n + 2 * j + 1] = sub(permute(both, none, uint32(0x4342)), zero)

    @inlined
    def of_fours(w: Any, a: Any) -> None:
        for j in range(2):
            for i in range(2):
                both = permute(w[j], w[j + 2], uint32(0x7531) if i else uint32(0x7430))
                a[2 * j + i] = sub(both & uint32(0x000F000F), zero)
                a[4 + 2 * j + i] = sub(both & uint32(0x00F000F0), upper_zero)

    return of_bytes if name == "q8_0" else of_fours


@cache
def value_words(name: str, length: int) -> Any:
    """The device function that reads two blocks of four positions: words, and pairs of scales."""
    size = row_bytes(name, 2 * BLOCK)
    middle, take4, take2, permute = size // 8 * 4, bf16x2.take4, halves.take2, bf16x2.permute
    half = size // 2

    @inlined
    def of_bytes(at: Any, places: Any, w: Any, x: Any, d: Any) -> None:
        heads, lasts = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for p in range(4):
            row = at + uint32(p * length)
            heads[p], lasts[p] = take4(row), take4(row + uint32(middle))
            w[p] = permute(take4(row + places[0]), lasts[p], places[1])
            x[p] = take4(row + places[0] + uint32(middle + 4))
        for p in range(2):
            d[p] = permute(heads[p], heads[p + 2], uint32(0x5410))
            d[2 + p] = permute(lasts[p], lasts[p + 2], uint32(0x7632))

    @inlined
    def of_fours(at: Any, places: Any, w: Any, x: Any, d: Any) -> None:
        heads, others = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for p in range(4):
            row = at + uint32(p * length)
            heads[p], others[p] = take2(row), take2(row + uint32(half))
            w[p] = take2(row + places[0] + uint32(2))
            x[p] = take2(row + places[0] + uint32(half + 2))
        for p in range(2):
            d[p] = permute(heads[p], heads[p + 2], uint32(0x5410))
            d[2 + p] = permute(others[p], others[p + 2], uint32(0x5410))

    return of_bytes if name == "q8_0" else of_fours


@cache
def block_mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights × values to the sums.

    Sums are too small by 24 powers of two less the type's lift.
    """
    name, length, size = plan.v, row_bytes(plan.v, plan.width_v), row_bytes(plan.v, 2 * BLOCK)
    read, pairs, mma, mul_halves = (
        value_words(name, length),
        value_pairs(name),
        multiplier("f16"),
        product_of_halves,
    )
    mul, narrowed, transposed, lifted = (
        ptx.mul,
        halves.narrowed,
        halves.transposed,
        float32(2.0 ** LIFTS[name]),
    )
    lane_bytes = 4 if name == "q8_0" else 2

    @inlined
    def multiply(w: Any, low: Any, high: Any, n: Any, o: Any) -> None:
        a = cuda.local.array(8, uint32)
        pairs(w, a)
        for i in range(2):
            m, k = n + 4 * i, 4 * i
            v = mma(a[k], a[k + 1], a[k + 2], a[k + 3], low, high, o[m], o[m + 2], o[m + 1], o[m + 3])
            o[m], o[m + 2], o[m + 1], o[m + 3] = v[0], v[1], v[2], v[3]

    def pair(j: Any, values: Any, places: Any, weights: Any, o: Any) -> None:
        w, x, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        read(values + uint32(j * size), places, w, x, d)
        low, high = weights[0], weights[1]
        multiply(w, mul_halves(low, d[0]), mul_halves(high, d[1]), 16 * j, o)
        multiply(x, mul_halves(low, d[2]), mul_halves(high, d[3]), 16 * j + 8, o)

    all_pairs = unrolled(plan.width_v // (2 * BLOCK), pair)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        places, weights = cuda.local.array(2, uint32), cuda.local.array(2, uint32)
        places[0], places[1] = g * uint32(lane_bytes), first_lane_picks(g)
        for i in range(2):
            weights[i] = transposed(narrowed(mul(s[i], lifted), mul(s[2 + i], lifted)))
        all_pairs(0, values + t * uint32(4 * length), places, weights, o)

    return mix
