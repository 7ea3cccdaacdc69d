"""Decode attention (≤ 8 query rows), swap-AB: K/V are ``mma``'s A operand; each warp has its own KV split.

This is a step of one sequence: the query rows of a KV head are few. Sixteen positions, or sixteen columns of
values, take the sixteen rows of A; queries, or p, are B with its eight columns. So a warp makes half the
products of mma.py, and has half the scores and sums.

While the kernel before still runs the same rows come into the second cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2, codes8, halves, hopper, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.codes8 import product_of_halves
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from .kv_tiles import (
    BLOCK_COLUMNS,
    P_LIFT_BITS,
    SUBNORMAL_BITS,
    ZERO_POINTS,
    Team,
    pair_of_words,
    stage_copier,
    two_pairs,
)
from .parameters import PARAMETERS, arguments_of, block_place, queries_of, work_at
from .plan import FLOAT16_TYPES, LANES, MIN_CAPABILITY, MMA_ROWS, Plan, row_bytes, swap_ab_plans
from .softmax import (
    clearer,
    columns_first_place,
    lane_rows_maker,
    mma_into,
    mma_of,
    row_reducer,
    rows_first_place,
    softmax_step,
    start_rows,
    unrolled,
)
from .split_kv import block_merger, merge_partials, warps_merger, write_pair

#     s[16 positions, 8 rows] = K · Qᵀ          o[16 columns, 8 rows] += Vᵀ · Pᵀ      for each 16 columns of V
#
#                  rows 0 … 7                                rows 0 … 7
#     pos.  0   ┌──────────────┐                  col.  0   ┌──────────────┐
#       …       │ lane 4 g + t │ row 2 t + r        …       │ lane 4 g + t │ row 2 t + r
#           15  └──────────────┘ s[2 r + i]             15  └──────────────┘ o[4 n + 2 r + i]
#
#     positions g, g + 8 of floats, by ldmatrix;            columns g, g + 8 of floats;
#     2 g, 2 g + 1 of blocks, decoded in registers          of blocks: as below
#
# A step of a block, warp w with sixteen positions of its own, which waits for no other warp until the end:
#
#     step     w 0        w 1        …      w 7          all stages are on their way before the first
#     0     ████████ │ ████████ │  …  │ ████████         products; a warp refills a stage behind its own
#     1     ████████ │ ████████ │  …  │ ████████
#           └───────── partials of eight warps ─────────► merged in shared memory; then in the cluster, if the
#                                                         blocks of all splits are one, or by the merge kernel

# --- start: rows come near --------------------------------------------------------------------


@cache
def prefetcher(plan: Plan, name: str, width: int) -> Any:
    """The device function ``prefetch(rows, stride, first, end, lane)``: a warp's positions, if all exist."""
    positions, length, line = plan.team_positions, row_bytes(name, width), 128
    spread, lines = name in FLOAT16_TYPES, -(-length // line)
    count = positions * lines if spread else -(-positions * length // line)

    @inlined
    def prefetch(rows: Any, stride: Any, first: Any, end: Any, lane: Any) -> None:
        if first + positions > end:
            return
        for i in range(0, count, LANES):
            number = lane + uint32(i)
            if number < count:
                if spread:
                    row = number // lines
                    within = (number - row * lines) * line
                    ptx.prefetch(rows + uint64(first + row) * stride + within)
                else:
                    ptx.prefetch(rows + first * length + uint64(number * line))

    return prefetch


@cache
def early_reader(plan: Plan) -> Any:
    """The device function that starts to read the rows of a block that has few steps.

    The kernel before may be writing rows, and lengths: what is read here is of no use but to be near. It goes
    to L2, where later writes are seen.
    """
    prefetch_keys = prefetcher(plan, plan.k, plan.width)
    prefetch_values = prefetcher(plan, plan.v, plan.width_v)
    stages, rows, positions = plan.stages, plan.rows, plan.positions

    @inlined
    def read(arguments: Any) -> None:
        strides = arguments.strides
        (warp, lane), place = warp_and_lane(), block_place(arguments, rows)
        work = work_at(place, arguments, rows, positions)
        kv = work.kv
        if kv.end_step - kv.first_step > int32(stages):
            return  # with many steps the memory is busy anyway
        for i in range(stages):
            step = kv.first_step + int32(i)
            if step < kv.end_step:
                first = uint32(step * int32(positions)) + warp * MMA_ROWS
                prefetch_keys(work.keys, strides.k_position, first, uint32(kv.end), lane)
                prefetch_values(work.values, strides.v_position, first, uint32(kv.end), lane)

    return read


# --- producer: queries ------------------------------------------------------------------------


def words_of_queries(plan: Plan) -> int:
    """Words of queries that a thread reads: two for two columns, whatever floats they are."""
    return 2 * -(-plan.rows * plan.width // 2 // plan.threads)


@cache
def query_reader(plan: Plan) -> Any:
    """The device function ``read(rows, kind, count, raw)``: a thread's pairs of queries, two words each.

    It waits for none of them. Queries are asked of memory before keys and values: behind those they would
    come last, and all products wait for them.
    """
    threads, pairs = plan.threads, plan.width // 2

    def read(i: Any, rows: Any, kind: Any, count: Any, raw: Any) -> None:
        number = uint32(cuda.threadIdx.x) + i * threads
        raw[2 * i], raw[2 * i + 1] = uint32(0), uint32(0)  # rows that there are not
        if number < count * pairs:
            if kind == 0:
                two = ptx.load8(rows + number * 8)
                raw[2 * i], raw[2 * i + 1] = two[0], two[1]
            else:
                raw[2 * i] = uint32(ptx.load4_nc(rows + number * 4))

    return unrolled(words_of_queries(plan) // 2, read)


@cache
def query_putter(plan: Plan) -> Any:
    """The device function ``put(to, kind, raw)``: what ``query_reader`` read, as a tile of 16-bit floats."""
    threads, rows_count, pairs, pitch = plan.threads, plan.rows, plan.width // 2, plan.pitch(plan.width)
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    def put(i: Any, to: Any, kind: Any, raw: Any) -> None:
        at = uint32(cuda.threadIdx.x) + i * threads
        row = at // pairs
        pair = at - row * pairs
        if row < rows_count:
            low, high = pair_of_words(raw[2 * i], raw[2 * i + 1], kind)
            ptx.put4(to + row * pitch + pair * 4, narrowed(low, high))

    return unrolled(words_of_queries(plan) // 2, put)


# --- qk_gemm and pv_gemm of floats ------------------------------------------------------------


@cache
def query_taker(plan: Plan) -> Any:
    """The device function ``take(queries, q, z)``: columns 2 t, 2 t + 1, also 8 on, of each sixteen."""
    pitch = plan.pitch(plan.width)

    def sixteen(j: Any, at: Any, q: Any) -> None:
        q[2 * j], q[2 * j + 1] = ptx.take4(at + 32 * j), ptx.take4(at + (32 * j + 16))

    all_columns = unrolled(plan.width // MMA_ROWS, sixteen)

    @inlined
    def take(queries: Any, q: Any, z: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        all_columns(queries + g * pitch + t * 4, q)

    return take


@cache
def make_qk_gemm(plan: Plan) -> Any:
    """The device function ``qk_gemm(keys, q, z, s)``; two sums, so that a product waits for no neighbour."""
    pitch, add_product = plan.pitch(plan.width), mma_into(plan.k)

    def two(j: Any, at: Any, q: Any, v: Any) -> None:
        for i in range(2):
            # A: 16 positions × 16 columns of keys; B: the same columns × 8 rows of queries
            a = tensor_cores.load_matrices(at + uint32(64 * j + 32 * i))
            n = 4 * j + 2 * i
            add_product(a, q[n], q[n + 1], v, 4 * i)

    all_columns = unrolled(plan.width // (2 * MMA_ROWS), two)

    @inlined
    def qk_gemm(keys: Any, q: Any, z: Any, s: Any) -> None:
        v = cuda.local.array(8, float32)
        for i in range(8):
            v[i] = float32(0)
        all_columns(keys + rows_first_place(warp_and_lane()[1], pitch), q, v)
        for i in range(2):
            for r in range(2):
                s[2 * r + i] = ptx.add(v[2 * i + r], v[4 + 2 * i + r])

    return qk_gemm


@cache
def make_pv_gemm(plan: Plan) -> Any:
    """The device function ``pv_gemm(s, values, o)``: adds p times values to the sums.

    Scores are an accumulator of [positions, rows]; B of the second product is [positions, rows] as well, but
    held the other way round, which ``movmatrix`` (``transposed``) does within the warp.
    """
    pitch, mma = plan.pitch(plan.width_v), mma_of(plan.v)
    narrowed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed

    def sixteen(j: Any, at: Any, low: Any, high: Any, o: Any) -> None:
        a, n = tensor_cores.load_transposed(at + 2 * MMA_ROWS * j), 4 * j
        # A: 16 columns of values × 16 positions. ``mma`` gives both rows of column g, then of column g + 8; o
        # has both columns of a row side by side, as s has both of its positions.
        v = mma(a[0], a[1], a[2], a[3], low, high, o[n], o[n + 2], o[n + 1], o[n + 3])
        o[n], o[n + 2], o[n + 1], o[n + 3] = v[0], v[1], v[2], v[3]

    all_columns = unrolled(plan.width_v // MMA_ROWS, sixteen)

    @inlined
    def pv_gemm(s: Any, values: Any, o: Any) -> None:
        low, high = (
            tensor_cores.transposed(narrowed(s[0], s[2])),
            tensor_cores.transposed(narrowed(s[1], s[3])),
        )
        all_columns(values + columns_first_place(warp_and_lane()[1], pitch), low, high, o)

    return pv_gemm


# --- qk_gemm of blocks ------------------------------------------------------------------------
#
# Blocks of q8_0 and q4_0 are read as they were copied and become A in registers. Lane 4 g + t:
#
#     keys     eight codes of each of positions 2 g, 2 g + 1 of a block
#     values   four columns of positions 4 t … 4 t + 3 of a block
#
# Codes multiply as subnormals (kv_tiles.py). The zero point of keys' codes is taken off before: products
# begin with minus the zero point times the queries' sum. Two blocks, a pair, begin at a word together. The
# first has its scale in front of two codes of its first word, and its last two codes in front of the scale of
# the second: lanes 0 take those four together.
#
#     bytes of a pair of q8_0      0  d  2 ──── codes 0 … 31 ──── 34  d  36 ──── codes 0 … 31 ──── 68
#     words                        │ d, 0, 1 │ 2 … 5 │ …    │ 30, 31, d │ 0 … 3 │ …

SUBNORMAL = 2.0**-SUBNORMAL_BITS
SIXTEENTH = np.uint32(halves.pair(1 / 16))  # upper four bits of a byte count sixteen times


@inlined
def first_lane_picks(place: Any) -> Any:
    """The bytes that ``permute`` picks of a lane's word and the first block's last: lanes 0 half of each."""
    return uint32(0x5432) if place == 0 else uint32(0x3210)


@cache
def block_query_taker(plan: Plan) -> Any:
    """The device function ``take(queries, q, z)``: a lane's columns as keys' codes lie, four pairs a block.

    ``z``: two floats a block.
    """
    pitch, is_q8, zero = plan.pitch(plan.width), plan.k == "q8_0", ZERO_POINTS[plan.k]
    take4, permute, mma = ptx.take4, ptx.permute, mma_of("f16")
    low, high = np.uint32(halves.pair(-zero * SUBNORMAL)), np.uint32(halves.pair(-16 * zero * SUBNORMAL))
    high = low if is_q8 else high

    @inlined
    def place_codes(q: Any, n: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        """Neighbours for bytes; for fours of a word columns two apart, the upper ones a sixteenth."""
        if is_q8:
            q[n], q[n + 1], q[n + 2], q[n + 3] = a, b, c, d
        else:
            evens, odds = uint32(0x5410), uint32(0x7632)
            q[n], q[n + 1] = permute(a, b, evens), permute(a, b, odds)
            q[n + 2] = product_of_halves(permute(c, d, evens), SIXTEENTH)
            q[n + 3] = product_of_halves(permute(c, d, odds), SIXTEENTH)

    # -zero · Σ q by two products like those of codes: A is -zero in all places, as a subnormal. Upper fours
    # count sixteen times, and so does their zero point.
    @inlined
    def set_zero(q: Any, n: Any, z: Any, m: Any) -> None:
        none = float32(0)
        v = mma(low, low, low, low, q[n], q[n + 1], none, none, none, none)
        v = mma(high, high, high, high, q[n + 2], q[n + 3], v[0], v[1], v[2], v[3])
        z[m], z[m + 1] = v[0], v[1]

    def pair(j: Any, row: Any, t: Any, q: Any, z: Any) -> None:
        # columns of the first block: from 4 t - 2, of lanes 0 columns 0, 1, 30, 31 (of fours 0, 1, 14, 15)
        at = row + 4 * BLOCK_COLUMNS * j
        first = at + (t * 8 - 4 if t != 0 else 0)
        beside = uint32(4) if t != 0 else uint32(60 if is_q8 else 28)
        second = first + 32
        if is_q8:
            second = at + 28 + t * 8
            place_codes(q, 8 * j, take4(first), take4(first + beside), take4(second), take4(second + 4))
        else:
            place_codes(q, 8 * j, take4(first), take4(first + beside), take4(second), take4(second + beside))
        at += 2 * BLOCK_COLUMNS + t * 8
        n, second = 8 * j + 4, at + 32
        place_codes(q, n, take4(at), take4(at + 4), take4(second), take4(second + 4))
        set_zero(q, 8 * j, z, 4 * j)
        set_zero(q, 8 * j + 4, z, 4 * j + 2)

    all_pairs = unrolled(plan.width // (2 * BLOCK_COLUMNS), pair)

    @inlined
    def take(queries: Any, q: Any, z: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        all_pairs(queries + g * pitch, t, q, z)

    return take


@cache
def key_pairs(name: str) -> Any:
    """The device function for a lane's eight codes of a position as pairs of halves.

    Bytes of both words, or fours of the first: bytes 0 and 2, bytes 1 and 3, then the upper fours of them.
    """

    @inlined
    def of_bytes(first: Any, second: Any) -> Any:
        first, second = first ^ 0x80808080, second ^ 0x80808080
        (a, b), (c, d) = two_pairs(first), two_pairs(second)
        return a, b, c, d

    @inlined
    def of_fours(first: Any, second: Any) -> Any:
        # Upper fours stay where they are in a byte: they count sixteen times, and their queries a sixteenth.
        odd, low, high = first >> 8, uint32(0x000F000F), uint32(0x00F000F0)
        return first & low, odd & low, first & high, odd & high

    return of_bytes if name == "q8_0" else of_fours


@cache
def make_block_qk_gemm(plan: Plan) -> Any:
    """The device function ``qk_gemm(keys, q, z, s)``: scores of eight rows and a warp's sixteen positions.

    ``keys``: the address of the first position.
    """
    length, size = row_bytes(plan.k, plan.width), row_bytes(plan.k, 2 * BLOCK_COLUMNS)
    take4, permute = ptx.take4, ptx.permute
    mma, pairs, is_q8, middle = mma_of("f16"), key_pairs(plan.k), plan.k == "q8_0", size // 8 * 4
    whole = float32(2.0**SUBNORMAL_BITS)

    @inlined
    def multiply(w: Any, n: Any, q: Any, z: Any, m: Any, d: Any, s: Any) -> None:
        """Words of both positions with queries from n on, sums that begin with z from m on."""
        a0, a1, a2, a3 = pairs(w[0], w[1])
        b0, b1, b2, b3 = pairs(w[2], w[3])
        # rows g and g + 8 of A are positions 2 g and 2 g + 1: their scores lie side by side
        v = mma(a0, b0, a1, b1, q[n], q[n + 1], z[m], z[m + 1], z[m], z[m + 1])
        v = mma(a2, b2, a3, b3, q[n + 2], q[n + 3], v[0], v[1], v[2], v[3])
        # The scale of a key's block is multiplied with its sum, not with 32 codes.
        for i in range(2):
            for r in range(2):
                s[2 * r + i] = ptx.fma(d[i], v[2 * i + r], s[2 * r + i])

    def pair(j: Any, keys: Any, places: Any, q: Any, z: Any, s: Any) -> None:
        w, x = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        d, e = cuda.local.array(2, float32), cuda.local.array(2, float32)
        for i in range(2):
            row = keys + uint32(j * size + i * length)
            at, last = row + places[0], take4(row + middle)
            # w: codes of the first block, x: of the second; d, e: their scales
            w[2 * i], w[2 * i + 1] = permute(take4(at), last, places[1]), uint32(0)
            x[2 * i], x[2 * i + 1] = take4(at + (middle + 4)), uint32(0)
            if is_q8:
                w[2 * i + 1] = take4(at + 16)
                x[2 * i + 1] = take4(at + (middle + 20))
            d[i], e[i] = codes8.half_values(take4(row))[0], codes8.half_values(last)[1]
        multiply(w, 8 * j, q, z, 4 * j, d, s)
        multiply(x, 8 * j + 4, q, z, 4 * j + 2, e, s)

    all_pairs = unrolled(plan.width // (2 * BLOCK_COLUMNS), pair)

    @inlined
    def qk_gemm(keys: Any, q: Any, z: Any, s: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        places = cuda.local.array(2, uint32)
        places[0], places[1] = t * 4, first_lane_picks(t)
        for i in range(4):
            s[i] = float32(0)
        all_pairs(keys + g * (2 * length), places, q, z, s)
        for i in range(4):
            s[i] = ptx.mul(s[i], whole)

    return qk_gemm


# --- pv_gemm of blocks ------------------------------------------------------------------------


@cache
def value_pairs(name: str) -> Any:
    """The device function ``pairs(w, a)``: a lane's words of four positions become eight pairs of positions.

    Pair 4 n + 2 j + i: column i of the first or second sixteen n, positions j and j + 2.
    Of q4_0 the second sixteen are sixteen times as large.
    """
    permute, sub, none = ptx.permute, halves.sub, np.uint32(0)
    zero = np.uint32(ZERO_POINTS[name] * 0x00010001)
    upper_zero = np.uint32(16 * ZERO_POINTS[name] * 0x00010001)

    @inlined
    def of_bytes(w: Any, a: Any) -> None:
        for j in range(2):
            for n in range(2):
                # bytes of a column, of positions j and j + 2, side by side; then the next column's
                both = permute(w[j], w[j + 2], uint32(0x7362) if n else uint32(0x5140)) ^ 0x80808080
                a[4 * n + 2 * j] = sub(permute(both, none, uint32(0x4140)), zero)
                a[4 * n + 2 * j + 1] = sub(permute(both, none, uint32(0x4342)), zero)

    @inlined
    def of_fours(w: Any, a: Any) -> None:
        for j in range(2):
            for i in range(2):
                both = permute(w[j], w[j + 2], uint32(0x7531) if i else uint32(0x7430))
                a[2 * j + i] = sub(both & 0x000F000F, zero)
                a[4 + 2 * j + i] = sub(both & 0x00F000F0, upper_zero)

    return of_bytes if name == "q8_0" else of_fours


@cache
def value_words(name: str, length: int) -> Any:
    """The device function that reads two blocks of four positions: words, and pairs of scales."""
    size = row_bytes(name, 2 * BLOCK_COLUMNS)
    middle, take4, take2, permute = size // 8 * 4, ptx.take4, ptx.take2, ptx.permute
    half = size // 2

    @inlined
    def of_bytes(at: Any, places: Any, w: Any, x: Any, d: Any) -> None:
        heads, lasts = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for p in range(4):
            row = at + uint32(p * length)
            heads[p], lasts[p] = take4(row), take4(row + middle)
            w[p] = permute(take4(row + places[0]), lasts[p], places[1])
            x[p] = take4(row + places[0] + (middle + 4))
        for p in range(2):
            d[p] = permute(heads[p], heads[p + 2], uint32(0x5410))
            d[2 + p] = permute(lasts[p], lasts[p + 2], uint32(0x7632))

    @inlined
    def of_fours(at: Any, places: Any, w: Any, x: Any, d: Any) -> None:
        heads, others = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for p in range(4):
            row = at + uint32(p * length)
            heads[p], others[p] = take2(row), take2(row + half)
            w[p] = take2(row + places[0] + 2)
            x[p] = take2(row + places[0] + (half + 2))
        for p in range(2):
            d[p] = permute(heads[p], heads[p + 2], uint32(0x5410))
            d[2 + p] = permute(others[p], others[p + 2], uint32(0x5410))

    return of_bytes if name == "q8_0" else of_fours


@cache
def make_block_pv_gemm(plan: Plan) -> Any:
    """The device function ``pv_gemm(s, values, o)``: adds p times values to the sums.

    Scales of values are multiplied with p of their positions. Sums are too small by 24 powers of two less the
    type's lift.
    """
    name, length, size = plan.v, row_bytes(plan.v, plan.width_v), row_bytes(plan.v, 2 * BLOCK_COLUMNS)
    read, pairs, mma = value_words(name, length), value_pairs(name), mma_of("f16")
    lifted = float32(2.0 ** P_LIFT_BITS[name])
    lane_bytes = 4 if name == "q8_0" else 2

    @inlined
    def multiply(w: Any, low: Any, high: Any, n: Any, o: Any) -> None:
        # two products of sixteen columns each, with the same p
        a = cuda.local.array(8, uint32)
        pairs(w, a)
        for i in range(2):
            m, k = n + 4 * i, 4 * i
            v = mma(a[k], a[k + 1], a[k + 2], a[k + 3], low, high, o[m], o[m + 2], o[m + 1], o[m + 3])
            o[m], o[m + 2], o[m + 1], o[m + 3] = v[0], v[1], v[2], v[3]

    def pair(j: Any, values: Any, places: Any, probabilities: Any, o: Any) -> None:
        w, x, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        read(values + j * size, places, w, x, d)
        low, high = probabilities[0], probabilities[1]
        multiply(w, product_of_halves(low, d[0]), product_of_halves(high, d[1]), 16 * j, o)
        multiply(x, product_of_halves(low, d[2]), product_of_halves(high, d[3]), 16 * j + 8, o)

    all_pairs = unrolled(plan.width_v // (2 * BLOCK_COLUMNS), pair)

    @inlined
    def pv_gemm(s: Any, values: Any, o: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        places, probabilities = cuda.local.array(2, uint32), cuda.local.array(2, uint32)
        places[0], places[1] = g * lane_bytes, first_lane_picks(g)
        # p is lifted before it is rounded: its product with a small scale would be a subnormal half.
        for i in range(2):
            two = halves.narrowed(ptx.mul(s[i], lifted), ptx.mul(s[2 + i], lifted))
            probabilities[i] = tensor_cores.transposed(two)
        all_pairs(values + t * (4 * length), places, probabilities, o)

    return pv_gemm


# --- epilogue: partials of warps, of a cluster ------------------------------------------------


@cache
def column_placer(plan: Plan) -> Any:
    """The device function ``place(o, to, g)``: a lane's sums go to two rows of shared memory."""
    pitch, sixteens, name = 4 * plan.partials_pitch, plan.width_v // 16, plan.v
    whole = 2.0 ** (SUBNORMAL_BITS - P_LIFT_BITS.get(name, 0))
    first, second = float32(whole), float32(whole if name == "q8_0" else whole / 16)

    def of_floats(n: Any, o: Any, to: Any, places: Any) -> None:
        for r in range(2):
            for i in range(2):
                ptx.put_float(to + uint32(64 * n + 32 * i + pitch * r) + places[0], o[4 * n + 2 * r + i])

    def of_blocks(n: Any, o: Any, to: Any, places: Any) -> None:
        for k in range(4):
            scale = second if k & 1 else first
            for r in range(2):
                m, at = 16 * n + 4 * k + 2 * r, to + uint32(256 * n + pitch * r)
                ptx.put_pair(at + places[k], ptx.mul(o[m], scale), ptx.mul(o[m + 1], scale))

    floats = name in FLOAT16_TYPES
    all_columns = unrolled(sixteens, of_floats) if floats else unrolled(sixteens // 4, of_blocks)

    @inlined
    def place(o: Any, to: Any, g: Any) -> None:
        places = cuda.local.array(4, uint32)
        if floats:
            places[0] = g * 4
        elif name == "q8_0":  # as ``value_words`` reads a word of four columns
            places[2], places[3] = 128 + g * 16, 136 + g * 16
            places[0], places[1] = g * 16 - 8, g * 16
            if g == 0:
                places[0], places[1] = uint32(0), uint32(120)
        else:
            for k in range(4):
                places[k] = uint32(64 * k) + g * 8
        all_columns(o, to, places)  # each row's sums in the order of its columns

    return place


@cache
def cluster_merger(plan: Plan) -> Any:
    """The device function by which the blocks of a cluster merge their partials of the same rows.

    Each block merges an equal share of all pairs of columns. Others put theirs into its shared memory, behind
    all that it has: [source, pair of the share], then stats [source, row].

        block 0   warps' partials ──► pairs of all shares ──┬──► inbox of block 0   [0] [1] … ──► share 0 of y
        block 1   warps' partials ──► pairs of all shares ──┴──► inbox of block 1   [0] [1] … ──► share 1 of y
    """
    pairs, threads, merge_warps, partial_rows = plan.width_v // 2, plan.threads, warps_merger(plan), plan.rows
    inbox_at, inbox_stats_at, put = plan.inbox_at, plan.inbox_stats_at, hopper.put_pair_in_block

    @inlined
    def share(at: Any, work: Any, arguments: Any) -> None:
        blocks, rank = hopper.cluster_size(), hopper.rank_in_cluster()
        number, addresses = uint32(cuda.threadIdx.x), arguments.addresses
        all_pairs = work.kv.rows * pairs
        each = (all_pairs + blocks - 1) // blocks  # pairs of a share, which its block merges
        inbox, stats_inbox = ptx.shared_base() + inbox_at, ptx.shared_base() + inbox_stats_at
        # The other half of the arrival in ``kernel``: the others have started, so their shared memory
        # exists. A store into that of a block that has not started is undefined.
        hopper.wait_for_cluster()
        while number < all_pairs:
            row = number // pairs
            pair = number - row * pairs
            merged = merge_warps(at, row, pair)
            owner = number // each
            put(inbox + (rank * each + number - owner * each) * 8, owner, merged.low, merged.high)
            if pair < blocks:  # stats of a row to each block once
                stats = stats_inbox + (rank * partial_rows + row) * 8
                put(stats, pair, merged.row_max, merged.row_sum)
            number += threads
        # All have put theirs, and it is visible. No block ends before that, so none writes into shared memory
        # of a block that is gone.
        hopper.sync_cluster()
        # the block's own share: partials of all blocks, in the order of their splits
        number = rank * each + uint32(cuda.threadIdx.x)
        while number < min(all_pairs, (rank + 1) * each):
            row = number // pairs
            stats, sums = stats_inbox + row * 8, inbox + (number - rank * each) * 8
            merged = merge_partials(stats, uint32(partial_rows * 8), sums, each * 8, blocks)
            write_pair(work.place.first_row + row, number - row * pairs, merged, addresses, arguments.sizes)
            number += threads

    return share


@cache
def writer(plan: Plan) -> Any:
    """The epilogue: lanes 4 g + t have rows 2 t and 2 t + 1; partials of warps are merged, then written."""
    pitch, stats_at, rows = 4 * plan.partials_pitch, plan.partial_stats_at, plan.rows
    sum_of_row, place = row_reducer(plan, ptx.add), column_placer(plan)
    share, finish = cluster_merger(plan), block_merger(plan)

    @inlined
    def write(o: Any, state: Any, work: Any, arguments: Any) -> None:
        (warp, lane), at = warp_and_lane(), ptx.shared_base()
        g, t = g_and_t(lane)
        cuda.syncthreads()  # partials lie over keys and values: all warps have read theirs
        row = warp * rows + 2 * t
        place(o, at + row * pitch, g)
        for r in range(2):
            row_sum = sum_of_row(state.row_sum[r])
            if g == 0:  # eight lanes have the same numbers
                ptx.put_pair(at + stats_at + (row + uint32(r)) * 8, state.row_max[r], row_sum)
        cuda.syncthreads()  # all partials are there
        if hopper.cluster_size() > 1:
            share(at, work, arguments)
        else:
            finish(at, work, arguments)

    return write


# --- kernel -----------------------------------------------------------------------------------


@family(swap_ab_plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (split of the positions, eight rows of a unit, unit)."""
    positions, stages, width, o_count, rows = (
        plan.positions, plan.stages, plan.width, plan.o_count, plan.rows
    )  # fmt: skip
    pitch_k, pitch_v = plan.row_pitch(plan.k, width), plan.row_pitch(plan.v, plan.width_v)
    stage_k, stage_v = plan.stage(plan.k, width), plan.stage(plan.v, plan.width_v)
    keys_at, values_at, score_step = plan.keys_at, plan.values_at, 2 if plan.score_stride == 1 else 1
    read_early, copy_stage, wait_for_stage = (
        early_reader(plan), stage_copier(plan), ptx.wait_for_all_but(stages - 1)
    )  # fmt: skip
    makers = (
        (query_taker, make_qk_gemm, make_pv_gemm)
        if plan.k in FLOAT16_TYPES
        else (block_query_taker, make_block_qk_gemm, make_block_pv_gemm)
    )
    take_queries, qk_gemm, pv_gemm = (make(plan) for make in makers)
    read_queries, put_queries, raw_words = query_reader(plan), query_putter(plan), words_of_queries(plan)
    rows_of_lane, softmax = lane_rows_maker(plan), softmax_step(plan)
    write, clear, query_words, zeros = writer(plan), clearer(o_count // 8), width // 8, width // MMA_ROWS

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        arguments = arguments_of(addresses, strides, sizes)

        # start: rows come near, then the block waits for the kernel before
        if hopper.cluster_size() > 1:
            # So that others know that this block's shared memory exists. They wait for it before they write
            # here, at the end (``cluster_merger``); relaxed, as nothing was written that they read.
            hopper.arrive_at_cluster_relaxed()
        # the next kernel's blocks may take multiprocessors that this one leaves free
        hopper.let_successor_start()
        read_early(arguments)
        # behind this queries, rows and lengths are what they shall be
        hopper.wait_for_predecessor()

        (warp, lane), at, place = warp_and_lane(), ptx.shared_base(), block_place(arguments, rows)
        (g, t), work = g_and_t(lane), work_at(place, arguments, rows, positions)
        kv = work.kv
        team = Team(warp * MMA_ROWS, lane)

        # producer: queries are asked of memory, then all stages; then queries are put where products take
        # them
        raw = cuda.local.array(raw_words, uint32)
        read_queries(queries_of(arguments, place, width), arguments.sizes.q_kind, kv.rows, raw)
        for i in range(stages):
            copy_stage(at, uint32(i), work, arguments.strides, kv.first_step + int32(i), team)
        put_queries(at, arguments.sizes.q_kind, raw)

        # rows of a lane: what they see, their softmax, their sums
        lane_rows = rows_of_lane(place.first_row + 2 * t, 1, arguments, place.length, scale, cap)
        s, o, q, z = (
            cuda.local.array(4, float32), cuda.local.array(o_count, float32),
            cuda.local.array(query_words, uint32), cuda.local.array(zeros, float32),
        )  # fmt: skip
        clear(o)
        start_rows(lane_rows.state)
        cuda.syncthreads()  # queries are of the block: each warp takes what all have put
        take_queries(at, q, z)
        k_at, v_at = (
            at + keys_at + team.first_row * pitch_k,
            at + values_at + team.first_row * pitch_v,
        )
        column, stage = int32(team.first_row) + int32(g) * int32(score_step), uint32(0)

        # consumer: a warp on its own
        for step in range(kv.first_step, kv.end_step):
            wait_for_stage()  # this lane's copies of the step have arrived
            cuda.syncwarp()  # … and those of the other lanes
            qk_gemm(k_at + stage * stage_k, q, z, s)
            softmax(s, o, step, column, kv, lane_rows)
            pv_gemm(s, v_at + stage * stage_v, o)
            cuda.syncwarp()  # all lanes have read the stage, which the next copies write
            copy_stage(at, stage, work, arguments.strides, step + int32(stages), team)
            stage = stage + 1 if stage + 1 < stages else 0

        # epilogue
        write(o, lane_rows.state, work, arguments)

    return Kernel(
        f"attention of {plan}", attend, *PARAMETERS, threads=plan.threads, limits_blocks=True,
        blocks=plan.blocks, shared=plan.shared_bytes, least=MIN_CAPABILITY, early=True,
    )  # fmt: skip
