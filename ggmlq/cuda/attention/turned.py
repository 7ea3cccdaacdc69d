"""Attention of up to eight rows: warps of their own positions, keys and values the wide operand of ``mma``.

This is a step of one sequence: the queries of a head of keys are few. A block's warps go over a part of the
positions, sixteen at a time each, and wait for nobody until the end, when they add their sums. Copies of
all stages are on their way before the first products, and each stage is filled again behind its own. While
the kernel before still runs the same rows come into the second cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, codes, dependent_launch, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes8 import product_of_halves
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from .codes import ZEROS
from .kernel import LEAST, fetcher
from .plan import EDGE, SIXTEEN, Plan, row_bytes, turned_plans
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, look, placer, queries_of, rows_finder
from .products import BLOCK, LAST_PLACE, LIFTS, clearer, key_place, multiplier, query_place
from .results import writer
from .rows import prefetcher, query_putter, query_reader, words_of_queries
from .softmax import LOG2_E, NEVER, changer, read_options, shrinker, weights_maker
from .unrolled import unrolled

# Products of turned.py with keys and values in blocks, decoded in registers. Lane 4 g + t:
#
#     keys     eight codes of each of positions 2 g, 2 g + 1 of a block
#     values   four columns of positions 4 t … 4 t + 3 of a block
#
# Blocks lie as they were copied. A byte in a half without other bits is that number × 2**-24. The zero of
# keys' codes is taken off before: products begin with minus the zero times the queries' sum. Two blocks begin
# at a word together. The first has its scale in front of two codes of its first word, and its last two codes
# in front of the scale of the second: lanes 0 take those four together.

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


# Products of a warp for up to eight rows of queries: keys and values are the wide operand of ``mma``.
#
# Sixteen positions, or columns of values, take the sixteen rows of that operand; queries, or weights, are the
# narrow one. So a warp makes half the products of products.py, and has half the scores and sums. Lane 4 g +
# t:
#
#     scores   of rows 2 t, 2 t + 1 at two positions: s[2 r + i], row r, position i
#     sums     of the same rows in two columns for each sixteen: o[4 n + 2 r + i], column i
#     floats   positions g, g + 8, columns g, g + 8 of sixteen, by ldmatrix
#     blocks   as turned.py says


class Products(NamedTuple):
    """Device functions of a plan."""

    take: Any  # (queries, q, z): queries of shared memory into registers, and where sums of blocks begin
    score: Any  # (keys, q, z, s)
    mix: Any  # (s, values, o)


def turned_products(plan: Plan) -> Products:
    """The products of a plan."""
    if plan.k in SIXTEEN:
        return Products(query_taker(plan), scorer(plan), mixer(plan))
    return Products(block_query_taker(plan), block_scorer(plan), block_mixer(plan))


@cache
def query_taker(plan: Plan) -> Any:
    """The device function ``take(queries, q, z)``: columns 2 t, 2 t + 1, also 8 on, of each sixteen."""
    pitch, take4 = plan.pitch(plan.width), bf16x2.take4

    def sixteen(j: Any, at: Any, q: Any) -> None:
        q[2 * j], q[2 * j + 1] = take4(at + uint32(32 * j)), take4(at + uint32(32 * j + 16))

    all_columns = unrolled(plan.width // EDGE, sixteen)

    @inlined
    def take(queries: Any, q: Any, z: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        all_columns(0, queries + g * uint32(pitch) + t * uint32(4), q)

    return take


@cache
def scorer(plan: Plan) -> Any:
    """The device function ``score(keys, q, z, s)``; two sums, so that a product waits for no neighbour."""
    pitch, mma, load, add = plan.pitch(plan.width), multiplier(plan.k), halves.load_matrices, ptx.add

    def two(j: Any, at: Any, q: Any, v: Any) -> None:
        for i in range(2):
            a = load(at + uint32(64 * j + 32 * i))
            n, o = 4 * j + 2 * i, 4 * i
            w = mma(a[0], a[1], a[2], a[3], q[n], q[n + 1], v[o], v[o + 1], v[o + 2], v[o + 3])
            v[o], v[o + 1], v[o + 2], v[o + 3] = w[0], w[1], w[2], w[3]

    all_columns = unrolled(plan.width // (2 * EDGE), two)

    @inlined
    def score(keys: Any, q: Any, z: Any, s: Any) -> None:
        v = cuda.local.array(8, float32)
        for i in range(8):
            v[i] = float32(0)
        all_columns(0, keys + query_place(warp_and_lane()[1], pitch), q, v)
        for i in range(2):
            for r in range(2):
                s[2 * r + i] = add(v[2 * i + r], v[4 + 2 * i + r])

    return score


@cache
def mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights × values to the sums."""
    pitch, mma, load, place = plan.pitch(plan.width_v), multiplier(plan.v), halves.load_transposed, key_place
    narrowed, transposed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed, halves.transposed

    def sixteen(j: Any, at: Any, low: Any, high: Any, o: Any) -> None:
        a, n = load(at + uint32(2 * EDGE * j)), 4 * j
        v = mma(a[0], a[1], a[2], a[3], low, high, o[n], o[n + 2], o[n + 1], o[n + 3])
        o[n], o[n + 2], o[n + 1], o[n + 3] = v[0], v[1], v[2], v[3]

    all_columns = unrolled(plan.width_v // EDGE, sixteen)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        low, high = transposed(narrowed(s[0], s[2])), transposed(narrowed(s[1], s[3]))
        all_columns(0, values + place(warp_and_lane()[1], pitch), low, high, o)

    return mix


@cache
def early_reader(plan: Plan) -> Any:
    """The device function that starts to read the rows of a block that has few steps.

    The kernel before may be writing rows, and lengths: what is read here is of no use but to be near.
    """
    find, find_keys, find_values = block_finder(plan.rows, plan.positions), rows_finder(0), rows_finder(3)
    prefetch_keys, prefetch_values = (
        prefetcher(plan, plan.k, plan.width),
        prefetcher(plan, plan.v, plan.width_v),
    )
    stages, step, find_place = plan.stages, plan.positions, placer(plan.rows)

    @inlined
    def read(addresses: Any, strides: Any, sizes: Any) -> None:
        (warp, lane), (unit, start, length) = warp_and_lane(), find_place(addresses, sizes)
        _, _, end, first, last = find(sizes, length, start)
        keys = find_keys(addresses[1], strides, sizes, unit)
        values = find_values(addresses[2], strides, sizes, unit)
        if last - first > int32(stages):  # there the memory is busy
            return
        for i in range(stages):
            tile = first + int32(i)
            if tile < last:
                place = uint32(tile * int32(step)) + warp * uint32(EDGE)
                prefetch_keys(keys, strides[2], place, uint32(end), lane)
                prefetch_values(values, strides[5], place, uint32(end), lane)

    return read


@cache
def starter(plan: Plan) -> Any:
    """The device function with which a block starts: rows come near, then it waits for the kernel before."""
    cluster_size, arrive, read_early = (
        barriers.cluster_size, barriers.arrive_at_cluster_relaxed, early_reader(plan)
    )  # fmt: skip
    let_successor_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor,
    )  # fmt: skip

    @inlined
    def begin(addresses: Any, strides: Any, sizes: Any) -> None:
        if cluster_size() > uint32(1):
            arrive()  # so that others know that this block's shared memory exists
        let_successor_start()
        read_early(addresses, strides, sizes)
        wait_for_predecessor()

    return begin


@family(turned_plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (part of the positions, one, head of keys of a sequence)."""
    step, stages, options, width, sums = plan.positions, plan.stages, plan.options, plan.width, plan.sums
    pitch_k, pitch_v = plan.row_pitch(plan.k, width), plan.row_pitch(plan.v, plan.width_v)
    stage_k, stage_v = plan.stage(plan.k, width), plan.stage(plan.v, plan.width_v)
    keys_at, values_at, place_step = plan.keys_at, plan.values_at, 2 if plan.neighbours == 1 else 1
    find, fetch, (take, score, mix) = block_finder(plan.rows, step), fetcher(plan), turned_products(plan)
    read_queries, put_queries, raw_words = query_reader(plan), query_putter(plan), words_of_queries(plan)
    find_keys, find_values, change, place, weigh, shrink = (
        rows_finder(0), rows_finder(3), changer(plan), placer(plan.rows), weights_maker(plan), shrinker(plan)
    )  # fmt: skip
    write, base, clear, query_words, zeros = (
        writer(plan), ptx.shared_base, clearer(sums // 8), width // 8, width // EDGE
    )  # fmt: skip
    wait, float_of, begin = ptx.wait_for_all_but(stages - 1), ptx.float_of, starter(plan)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        begin(addresses, strides, sizes)
        (warp, lane), at, (unit, start, length) = warp_and_lane(), base(), place(addresses, sizes)
        g, t = g_and_t(lane)
        count, seen, end, first, last = find(sizes, length, start)
        keys, values = (
            find_keys(addresses[1], strides, sizes, unit), find_values(addresses[2], strides, sizes, unit)
        )  # fmt: skip
        warp_first = warp * uint32(EDGE)  # first position of the warp in a step
        begins, ends, raw = (
            cuda.local.array(2, int32), cuda.local.array(2, int32), cuda.local.array(raw_words, uint32)
        )  # fmt: skip
        read_queries(queries_of(addresses, sizes, start, width, unit), sizes[6], count, raw)
        for i in range(stages):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end, warp_first, lane)
        put_queries(at, sizes[6], raw)
        numbers, distances = cuda.local.array(4, float32), cuda.local.array(2, uint64)
        places, mask, row = cuda.local.array(3, int32), uint64(0), start + uint32(2) * t
        look(begins, ends, row, 1, sizes, length)
        if options:
            numbers[0], numbers[1] = float_of(scale), float_of(cap)
            mask = read_options(numbers, places, distances, row, 1, addresses, strides, sizes, length)
        factor = LOG2_E if options else ptx.mul(float_of(scale), LOG2_E)
        tops, totals = cuda.local.array(2, float32), cuda.local.array(2, float32)
        ratios, s, o = (
            cuda.local.array(2, float32), cuda.local.array(4, float32), cuda.local.array(sums, float32)
        )  # fmt: skip
        q, z = cuda.local.array(query_words, uint32), cuda.local.array(zeros, float32)
        clear(0, o)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        cuda.syncthreads()  # queries are there
        take(at, q, z)
        k_at, v_at = (
            at + uint32(keys_at) + warp_first * uint32(pitch_k),
            at + uint32(values_at) + warp_first * uint32(pitch_v),
        )
        column, stage = int32(warp_first) + int32(g) * int32(place_step), uint32(0)
        for tile in range(first, last):
            wait()
            cuda.syncwarp()
            score(k_at + stage * uint32(stage_k), q, z, s)
            origin = tile * int32(step)
            if options:
                change(0, s, origin + column, places, numbers, mask, distances)
            if weigh(s, origin, column, seen, begins, ends, factor, tops, totals, ratios):
                shrink(0, o, ratios)
            mix(s, v_at + stage * uint32(stage_v), o)
            cuda.syncwarp()
            fetch(at, stage, keys, values, strides, tile + int32(stages), last, end, warp_first, lane)
            stage = stage + uint32(1) if stage + uint32(1) < uint32(stages) else uint32(0)
        write(o, tops, totals, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        limits_blocks=True,
        blocks=plan.blocks, shared=plan.shared_bytes, least=LEAST, early=True,
    )  # fmt: skip
