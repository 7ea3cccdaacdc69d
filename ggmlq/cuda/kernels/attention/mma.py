"""Attention by ``mma.sync``, queries as A: any types and options, for cards without wgmma and for few rows.

A block has query rows that share their keys, of all heads of a group, and goes over its split of the
positions step by step. Warps share a step in two ways: each has rows of its own, or positions of its own.

With few rows it is limited by memory; with many by ``mma.sync``, which reaches under two thirds of what wgmma
does on Hopper.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2, halves, hopper, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.codes8 import product_of_halves
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, uint32
from ...intrinsics.tensor_cores import mma_f16
from .kv_tiles import (
    BLOCK_COLUMNS,
    P_LIFT_BITS,
    SUBNORMAL_BITS,
    ZERO_POINTS,
    Team,
    load_pair,
    padded_putter,
    stage_copier,
    tile_decoder,
    two_pairs,
)
from .parameters import PARAMETERS, arguments_of, block_place, queries_of, work_at
from .plan import MIN_CAPABILITY, MMA_ROWS, Plan, plans, row_bytes
from .softmax import (
    clearer,
    columns_first_place,
    lane_rows_maker,
    mma_into,
    row_reducer,
    rows_first_place,
    softmax_step,
    start_rows,
    unrolled,
)
from .split_kv import block_merger, rows_writer

#     by_rows: warp w has rows 16 w … 16 w + 15       by positions: all warps have the same 16 rows,
#     of the block, and all positions of a step       warp w has positions 16 w … 16 w + 15 of a step
#
#          positions of a step                             positions of a step
#          0 ─────────────── 63                            0 ── 15 ┬ 16 ── 31 ┬ 32 ── 47 ┬ 48 ── 63
#     w 0  ████████████████████                       rows │ warp 0 │  warp 1  │  warp 2  │  warp 3
#     w 1  ████████████████████                       team: a warp; nobody waits for another one
#     team: the block, which copies and               until the end, where the block merges the
#     decodes each position once                      partials of its warps (split_kv.py)
#
# A step, with K and V in a ring of stages that ``cp.async`` fills:
#
#     copy a later step ─► [decode to tiles] ─► qk_gemm ─► score_mod, mask, softmax ─► rescale_o, pv_gemm
#                                               s = q · kᵀ    in registers alone       o = o · o_scale + p · v
#
# A lane 4 g + t has rows g and g + 8. Of the scores it has four numbers for each eight positions: positions
# 2 t and 2 t + 1 of row g, then of row g + 8. Two such fours, rounded to 16 bits, are at once A of the next
# ``mma``: p never leaves the registers.

# --- producer: queries, stages, tiles ---------------------------------------------------------


@cache
def query_loader(plan: Plan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a tile of 16-bit floats.

    ``kind``: 0 for float32, 1 for float16, 2 for bfloat16. Rows from ``count`` on become zeros.
    """
    threads, rows_count, pairs, pitch = plan.threads, plan.rows, plan.width // 2, plan.pitch(plan.width)
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        for i in range(-(-rows_count * pairs // threads)):
            at = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row = at // pairs
            pair = at - row * pairs
            if row < rows_count:
                word = uint32(0)  # rows past the end
                if row < count:
                    low, high = load_pair(rows, row * pairs + pair, kind)
                    word = narrowed(low, high)
                ptx.put4(to + row * pitch + pair * 4, word)

    return load


@cache
def tile_finder(plan: Plan, values: bool) -> Any:
    """The device function that finds a step's tile of keys, or values, and decodes it if need be."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    decodes = plan.decodes(name)
    stages_at, tile_at = (
        (plan.values_at, plan.value_tile_at) if values else (plan.keys_at, plan.key_tile_at)
    )  # fmt: skip
    stage_bytes, length, pitch = plan.stage(name, width), plan.length(name, width), plan.pitch(width)
    decode: Any = None
    if decodes:
        put = padded_putter(name, pitch)
        decode = tile_decoder(plan.team_threads, plan.team_positions, name, width, put)

    @inlined
    def find(at: Any, stage: Any, team: Any) -> Any:
        offset = stages_at + stage * stage_bytes
        if decodes:
            tile = at + tile_at + team.first_row * pitch
            decode(at + offset + team.first_row * length, tile, team.rank)
            offset = uint32(tile_at)
        return offset

    return find


def team_barrier(plan: Plan) -> Any:
    """The device function that waits for the threads of a team: the block, or a warp of own positions."""
    by_rows = plan.by_rows

    @inlined
    def wait_for_team() -> None:
        if by_rows:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    return wait_for_team


# --- qk_gemm: s = q · kᵀ ----------------------------------------------------------------------


@cache
def make_qk_gemm(plan: Plan) -> Any:
    """The device function ``qk_gemm(queries, keys, s)``: scores of a warp's rows and positions, from tiles.

    For sixteen positions alone two sums go side by side, of even and odd steps along the columns, so that a
    product does not wait for its neighbour.
    """
    groups, steps, pitch = plan.team_positions // MMA_ROWS, plan.width // MMA_ROWS, plan.pitch(plan.width)
    add_product = mma_into(plan.k)

    def sixteen(j: Any, a: Any, keys: Any, s: Any) -> None:
        # A: 16 rows × 16 columns of queries; B: the same columns × 8 positions, twice
        b = tensor_cores.load_matrices(keys + j * MMA_ROWS * pitch)
        add_product(a, b[0], b[1], s, 8 * j)
        add_product(a, b[2], b[3], s, 8 * j + 4)

    all_positions, one = unrolled(groups, sixteen), unrolled(1, sixteen)

    clear_all = clearer(groups)

    @inlined
    def qk_gemm(queries: Any, keys: Any, s: Any) -> None:
        clear_all(s)
        for step in range(steps):
            a = tensor_cores.load_matrices(queries + uint32(step) * (2 * MMA_ROWS))
            all_positions(a, keys + uint32(step) * (2 * MMA_ROWS), s)

    @inlined
    def qk_gemm_in_two(queries: Any, keys: Any, s: Any) -> None:
        other = cuda.local.array(8, float32)
        clear_all(s)
        clear_all(other)
        for step in range(0, steps, 2):
            at = uint32(step) * (2 * MMA_ROWS)
            a, b = (
                tensor_cores.load_matrices(queries + at),
                tensor_cores.load_matrices(queries + at + 2 * MMA_ROWS),
            )
            one(a, keys + at, s)
            one(b, keys + at + 2 * MMA_ROWS, other)
        for i in range(8):
            s[i] = ptx.add(s[i], other[i])

    return qk_gemm_in_two if groups == 1 and steps % 2 == 0 else qk_gemm


# The same with blocks of q8_0 and q4_0 as they lie in their stage, for few rows: lanes decode B in registers.
#
#     keys      lane 4 g + t has eight codes of position g: neighbours, or two fours sixteen columns apart
#     values    it has codes of columns 2 g, 2 g + 1, and 16 columns on, of positions 2 t, 2 t + 1, and 8 on
#
# A product sums over columns, or positions, in any order, as long as the other operand has the same: queries
# are read in the order of the codes. Codes multiply as subnormals (kv_tiles.py). Scales of keys are
# multiplied with the sums of a block, scales of values with p of their positions.


@inlined
def no_place(lane: Any, pitch: Any) -> Any:
    """The offset of a lane in an operand in which it finds its places itself."""
    return uint32(0)


@cache
def code_pairs(name: str) -> Any:
    """The device function for pairs of halves of two words: four of the first, then four of the second.

    Of q4_0 both words are the same one, of which the first four are the low bits.
    """
    zero = np.uint32(ZERO_POINTS[name] * 0x00010001)

    @inlined
    def pairs(first: Any, second: Any) -> Any:
        if name == "q8_0":
            first, second = first ^ uint32(0x80808080), second ^ uint32(0x80808080)
        else:
            first, second = first & uint32(0x0F0F0F0F), second >> uint32(4) & uint32(0x0F0F0F0F)
        (a, b), (c, d) = two_pairs(first), two_pairs(second)
        return halves.sub(a, zero), halves.sub(b, zero), halves.sub(c, zero), halves.sub(d, zero)

    return pairs


CODES_AT = 2  # offset of a block's codes, behind its scale


@cache
def key_words(name: str, even: bool) -> Any:
    """The device function for a lane's words of codes of a key; those of ``even`` blocks begin within a word.

    Blocks have 34 or 18 bytes, two of them a whole number of words: codes begin 2 bytes behind a word in even
    blocks, at a word in odd ones. ``permute`` joins two halves of words, as loads must be aligned.
    """
    take4, permute, is_q8 = ptx.take4, ptx.permute, name == "q8_0"

    @inlined
    def take(block: Any, t: Any) -> Any:
        at = block + t * uint32(8 if is_q8 else 4) + uint32(0 if even else CODES_AT)
        first, second = take4(at), uint32(0)
        if is_q8 or even:
            second = take4(at + uint32(4))
        if even:
            third = take4(at + uint32(8)) if is_q8 else uint32(0)
            first, second = permute(first, second, uint32(0x5432)), permute(second, third, uint32(0x5432))
        return first, second if is_q8 else first

    return take


@cache
def block_scores_adder(plan: Plan, even: bool) -> Any:
    """The device function that adds the products of one block's columns to scores of sixteen positions."""
    name, length, pitch = plan.k, row_bytes(plan.k, plan.width), plan.pitch(plan.width)
    take, pairs, is_q8 = key_words(name, even), code_pairs(name), name == "q8_0"

    @inlined
    def query_words(at: Any) -> Any:
        if is_q8:
            v = ptx.take16(at)
            return uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])
        first, second = ptx.take8(at), ptx.take8(at + uint32(MMA_ROWS * 2))
        return first[0], first[1], second[0], second[1]

    @inlined
    def add(queries: Any, keys: Any, block: Any, s: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        q_at = queries + g * uint32(pitch) + t * uint32(16 if is_q8 else 8)
        low, high = query_words(q_at), query_words(q_at + uint32(8 * pitch))
        none = float32(0)
        for half in range(2):
            row = keys + block + uint32(8 * half * length)
            first, second = take(row + g * uint32(length), t)
            b0, b1, b2, b3 = pairs(first, second)
            v = mma_f16(low[0], high[0], low[1], high[1], b0, b1, none, none, none, none)
            v = mma_f16(low[2], high[2], low[3], high[3], b2, b3, v[0], v[1], v[2], v[3])
            # sums of a lane are of positions 2 t and 2 t + 1: these scales, not those of its own codes
            at = row + t * uint32(2 * length)
            d0 = ptx.half_value(ptx.take2(at))
            d1 = ptx.half_value(ptx.take2(at + uint32(length)))
            i = 4 * half
            s[i], s[i + 1] = ptx.fma(d0, v[0], s[i]), ptx.fma(d1, v[1], s[i + 1])
            s[i + 2], s[i + 3] = ptx.fma(d0, v[2], s[i + 2]), ptx.fma(d1, v[3], s[i + 3])

    return add


@cache
def make_block_qk_gemm(plan: Plan) -> Any:
    """The device function ``qk_gemm(queries, keys, s)``: scores of sixteen rows and a warp's positions.

    ``queries``, ``keys``: addresses of the first rows.
    """
    assert plan.team_positions == MMA_ROWS
    add_even, add_odd = block_scores_adder(plan, True), block_scores_adder(plan, False)
    pairs, size = plan.width // (2 * BLOCK_COLUMNS), row_bytes(plan.k, BLOCK_COLUMNS)
    whole = float32(2.0**SUBNORMAL_BITS)

    @inlined
    def qk_gemm(queries: Any, keys: Any, s: Any) -> None:
        for i in range(8):
            s[i] = float32(0)
        for pair in range(pairs):
            at, block = queries + uint32(pair) * uint32(4 * BLOCK_COLUMNS), uint32(pair) * uint32(2 * size)
            add_even(at, keys, block, s)
            add_odd(at + uint32(2 * BLOCK_COLUMNS), keys, block + uint32(size), s)
        for i in range(8):
            s[i] = ptx.mul(s[i], whole)

    return qk_gemm


# --- pv_gemm: o += p · v ----------------------------------------------------------------------


@cache
def make_pv_gemm(plan: Plan) -> Any:
    """The device function ``pv_gemm(s, values, o)``: adds p times values to the sums of a warp's rows."""
    groups, columns = plan.team_positions // MMA_ROWS, plan.width_v // MMA_ROWS
    pitch = plan.pitch(plan.width if plan.v_in_k else plan.width_v)
    name = plan.k if plan.v_in_k else plan.v
    add_product = mma_into(name)
    together = next(n for n in (4, 2, 1) if columns % n == 0)
    narrowed = bf16x2.narrowed if name == "bf16" else halves.narrowed

    def sixteens(first: Any, a: Any, values: Any, o: Any) -> None:
        for i in range(together):
            j = first + i
            # B: 16 positions × 8 columns of values, twice: ``ldmatrix`` transposes them on the way
            b = tensor_cores.load_transposed(values + uint32(j * 2 * MMA_ROWS))
            add_product(a, b[0], b[1], o, 8 * j)
            add_product(a, b[2], b[3], o, 8 * j + 4)

    all_columns = unrolled(columns // together, sixteens, together)

    def group(j: Any, s: Any, values: Any, o: Any) -> None:
        i = 8 * j
        # Scores of 16 positions, an accumulator, are at once A of this product: no lane needs another's.
        a0, a1 = narrowed(s[i], s[i + 1]), narrowed(s[i + 2], s[i + 3])
        a2, a3 = narrowed(s[i + 4], s[i + 5]), narrowed(s[i + 6], s[i + 7])
        all_columns((a0, a1, a2, a3), values + j * MMA_ROWS * pitch, o)

    return unrolled(groups, group)


@cache
def make_block_pv_gemm(plan: Plan) -> Any:
    """The device function ``pv_gemm(s, values, o)`` for blocks; ``values``: the address of the first row.

    Sums are too small by 24 powers of two less the type's lift. Of sixteen columns a lane has 4 t … 4 t + 3:
    the even ones in four sums of rows g and g + 8, the odd ones in the next four.
    """
    name, length, size = plan.v, row_bytes(plan.v, plan.width_v), row_bytes(plan.v, BLOCK_COLUMNS)
    pairs, is_q8, add_product = code_pairs(name), name == "q8_0", mma_into("f16")
    lifted = float32(2.0 ** P_LIFT_BITS[name])

    @inlined
    def of_two_rows(at: Any, picks: Any) -> Any:
        return ptx.permute(ptx.take2(at), ptx.take2(at + uint32(length)), uint32(picks))

    @inlined
    def two_rows(at: Any) -> Any:
        """Codes of columns 2 g, 2 g + 1 of two rows, and of those sixteen columns on."""
        first = of_two_rows(at, 0x5140)
        second = first
        if is_q8:  # a byte of q4_0 has columns c and c + 16: one word serves both
            second = of_two_rows(at + uint32(MMA_ROWS), 0x5140)
        return pairs(first, second)

    def one(b: Any, a: Any, places: Any, o: Any) -> None:
        # A scale belongs to a position, over which this product sums: so it is multiplied with p.
        codes, scales = places[0] + uint32(b * size), places[1] + uint32(b * size)
        d, e = of_two_rows(scales, 0x5410), of_two_rows(scales + uint32(8 * length), 0x5410)
        a0, a1 = product_of_halves(a[0], d), product_of_halves(a[1], d)
        a2, a3 = product_of_halves(a[2], e), product_of_halves(a[3], e)
        w = cuda.local.array(8, uint32)
        w[0], w[1], w[2], w[3] = two_rows(codes)
        w[4], w[5], w[6], w[7] = two_rows(codes + uint32(8 * length))
        for j in range(4):
            add_product((a0, a1, a2, a3), w[j], w[4 + j], o, 16 * b + 4 * j)

    all_blocks = unrolled(plan.width_v // BLOCK_COLUMNS, one)

    @inlined
    def pv_gemm(s: Any, values: Any, o: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        a, places = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
        # p is lifted before it is rounded: its product with a small scale would be a subnormal half.
        for i in range(4):
            a[i] = halves.narrowed(ptx.mul(s[2 * i], lifted), ptx.mul(s[2 * i + 1], lifted))
        places[1] = values + t * uint32(2 * length)
        places[0] = places[1] + g * uint32(2) + uint32(CODES_AT)
        all_blocks(a, places, o)

    return pv_gemm


# --- consumer: a step up to its scores --------------------------------------------------------


class LaneOperands(NamedTuple):
    """Addresses at which a lane reads operands; those of K and V without the offset of their tile."""

    q: Any
    k: Any
    v: Any


@cache
def scores_maker(plan: Plan) -> Any:
    """The device function that makes the scores of a step and gives the offset of its values.

    It starts the copies of a later step where a stage is free: as soon as that is decoded, or behind the
    products with it.
    """
    by_rows, v_in_k, stages, ahead = plan.by_rows, plan.v_in_k, plan.stages, plan.ahead
    decodes_k, decodes_v = plan.decodes(plan.k), plan.decodes(plan.v) and not plan.v_in_k
    find_keys, find_values = tile_finder(plan, False), tile_finder(plan, True)
    early = by_rows or not decodes_v  # values are decoded before the scores are made
    copy_stage, wait_for_team = stage_copier(plan), team_barrier(plan)
    qk_gemm = make_block_qk_gemm(plan) if plan.in_registers else make_qk_gemm(plan)

    @inlined
    def make_scores(
        s: Any, at: Any, lane_at: Any, stage: Any, work: Any, arguments: Any, step: Any, team: Any
    ) -> Any:  # fmt: skip
        k_offset, v_offset = find_keys(at, stage, team), uint32(0)
        if early and not v_in_k:
            v_offset = find_values(at, stage, team)
        if decodes_k or (decodes_v and early):
            wait_for_team()  # tiles are written: a lane reads what others have decoded
        # The stage of step + ahead: this one if its rows are decoded by now, else that of the step before.
        free = stage + ahead
        free = free - stages if free >= stages else free
        if early:
            copy_stage(at, free, work, arguments.strides, step + int32(ahead), team)
        qk_gemm(lane_at.q, lane_at.k + k_offset, s)
        if not early:  # values are decoded over the keys
            wait_for_team()  # all have read the keys' tile
            v_offset = find_values(at, stage, team)
            wait_for_team()  # values are written, and their stage is free
            copy_stage(at, free, work, arguments.strides, step + int32(ahead), team)
        if v_in_k:  # columns of the same tile: 2 bytes each
            v_offset = k_offset + uint32(2) * arguments.sizes.v_column
        return v_offset

    return make_scores


# --- epilogue ---------------------------------------------------------------------------------


@cache
def positions_writer(plan: Plan) -> Any:
    """The epilogue of warps with positions of their own: partials in shared memory, merged by the block."""
    columns, pitch, stats_at = plan.width_v // 8, plan.partials_pitch, plan.partial_stats_at
    # Sums of blocks decoded in registers are brought to their size here, once.
    whole = float32(2.0 ** (SUBNORMAL_BITS - P_LIFT_BITS.get(plan.v, 0)))
    sum_of_row, finish = row_reducer(plan, ptx.add), block_merger(plan)

    def eight(j: Any, o: Any, to: Any) -> None:
        for r in range(2):
            ptx.put_pair(to + uint32(32 * j + 8 * r * pitch * 4), o[4 * j + 2 * r], o[4 * j + 2 * r + 1])

    def sixteen(j: Any, o: Any, to: Any) -> None:
        for r in range(2):
            for i in range(2):
                a, b = 8 * j + 2 * r + i, 8 * j + 4 + 2 * r + i
                place = to + uint32(64 * j + 8 * i + 8 * r * pitch * 4)
                ptx.put_pair(place, ptx.mul(o[a], whole), ptx.mul(o[b], whole))

    per_lane = 16 if plan.in_registers else 8  # bytes of a lane's columns
    all_columns = unrolled(columns // 2, sixteen) if plan.in_registers else unrolled(columns, eight)

    @inlined
    def write(o: Any, state: Any, work: Any, arguments: Any) -> None:
        (warp, lane), at = warp_and_lane(), ptx.shared_base()
        g, t = g_and_t(lane)
        cuda.syncthreads()  # partials lie over queries, keys and values: all warps have read theirs
        place = warp * MMA_ROWS + g
        all_columns(o, at + place * (pitch * 4) + t * per_lane)
        for r in range(2):
            row_sum = sum_of_row(state.row_sum[r])
            if t == 0:  # four lanes have the same numbers
                stats = at + stats_at + (place + uint32(8 * r)) * 8
                ptx.put_pair(stats, state.row_max[r], row_sum)
        cuda.syncthreads()  # all partials are there
        finish(at, work, arguments)

    return write


# --- kernel -----------------------------------------------------------------------------------


@family(plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (split of the positions, rows of a unit, unit)."""
    positions, stages, by_rows, width, ahead, rows = (
        plan.positions, plan.stages, plan.by_rows, plan.width, plan.ahead, plan.rows
    )  # fmt: skip
    pitch_q, pitch_k = plan.pitch(plan.width), plan.row_pitch(plan.k, plan.width)
    pitch_v = pitch_k if plan.v_in_k else plan.row_pitch(plan.v, plan.width_v)
    o_count, score_count = plan.width_v // 2, plan.team_positions // 2
    copy_stage, load_queries, make_scores = stage_copier(plan), query_loader(plan), scores_maker(plan)
    rows_first, columns_first, make_pv = (
        (no_place, no_place, make_block_pv_gemm)
        if plan.in_registers
        else (rows_first_place, columns_first_place, make_pv_gemm)
    )
    pv_gemm, clear = make_pv(plan), clearer(o_count // 8)
    rows_of_lane, softmax = lane_rows_maker(plan), softmax_step(plan)
    write = rows_writer(plan) if by_rows else positions_writer(plan)
    wait_for_team, wait_for_stage = team_barrier(plan), ptx.wait_for_all_but(ahead - 1)

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        # q, K, V and lengths may be written by the kernel before: nothing is read until it has ended.
        hopper.take_turn()
        arguments = arguments_of(addresses, strides, sizes)
        (warp, lane), at, place = warp_and_lane(), ptx.shared_base(), block_place(arguments, rows)
        g, t = g_and_t(lane)
        work = work_at(place, arguments, rows, positions)
        kv = work.kv
        warp_row = warp * MMA_ROWS  # first row or position of the warp
        team = Team(
            uint32(0) if by_rows else warp_row, uint32(cuda.threadIdx.x) if by_rows else lane
        )  # fmt: skip

        # producer: the first steps are on their way before the queries, which are loaded through registers
        for i in range(ahead):
            copy_stage(at, uint32(i), work, arguments.strides, kv.first_step + int32(i), team)
        load_queries(at, queries_of(arguments, place, width), arguments.sizes.q_kind, kv.rows)
        if not by_rows:
            # Queries are of the block, and in the loop a warp waits for itself alone.
            cuda.syncthreads()

        # rows of a lane: what they see, their softmax, their sums
        row = place.first_row + g + warp_row - team.first_row
        lane_rows = rows_of_lane(row, 8, arguments, place.length, scale, cap)
        start_rows(lane_rows.state)
        o, s = cuda.local.array(o_count, float32), cuda.local.array(score_count, float32)
        clear(o)
        # Rows of queries by warp, positions by team: one of the two offsets is 0.
        lane_at = LaneOperands(
            at + rows_first(lane, pitch_q) + (warp_row - team.first_row) * pitch_q,
            at + columns_first(lane, pitch_k) + team.first_row * pitch_k,
            at + rows_first(lane, pitch_v) + team.first_row * pitch_v,
        )

        # consumer
        stage = uint32(0)
        for step in range(kv.first_step, kv.end_step):
            wait_for_stage()  # this thread's copies of the step have arrived
            # … and those of the rest of its team; and all have left the stage and the tiles of the step
            # before, which are about to be written.
            wait_for_team()
            v_offset = make_scores(s, at, lane_at, stage, work, arguments, step, team)
            softmax(s, o, step, int32(t) * int32(2) + int32(team.first_row), kv, lane_rows)
            pv_gemm(s, lane_at.v + v_offset, o)
            stage = stage + 1 if stage + 1 < stages else 0

        # epilogue
        write(o, lane_rows.state, work, arguments)

    return Kernel(
        f"attention of {plan}", attend, *PARAMETERS, threads=plan.threads, blocks=plan.blocks,
        shared=plan.shared_bytes, least=MIN_CAPABILITY, early=True,
    )  # fmt: skip
