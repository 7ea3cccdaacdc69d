"""The fragments of a warp's scores and the online softmax over them: options, mask, row maxima and sums.

Everything is in powers of two, because ex2 is the GPU's instruction. A position that a row does not see has
minus infinity as its score; a row that has seen nothing has minus infinity as its maximum.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...intrinsics import lane, ptx, tensor_cores
from ...intrinsics.assembly import f32, instruction
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from .parameters import find_row_ranges, new_row_ranges

LOG2_E, TWICE_LOG2_E = float32(1 / math.log(2)), float32(2 / math.log(2))
MINUS_INFINITY, LOWEST_FINITE = float32(float("-inf")), float32(-3e38)

# --- loops over fragments ---------------------------------------------------------------------


def unrolled(count: int, body: Callable[..., None], step: int = 1) -> Any:
    """The device function that calls ``body(i, …)`` ``count`` times, i growing by ``step`` from 0 on.

    It takes what ``body`` takes behind i. The calls are written out: arrays of a thread stay in registers
    only where every index is a constant.
    """
    arguments = ", ".join(list(inspect.signature(body).parameters)[1:])
    calls = [f"    body({i * step}, {arguments})" for i in range(count)]
    namespace: dict[str, Any] = {"__name__": __name__, "body": inlined(body)}
    exec("\n".join([f"def all_calls({arguments}):", *calls]), namespace)
    return inlined(namespace["all_calls"])


def mma_of(name: str) -> Any:
    """The ``mma`` m16n8k16 for tiles of a type: bf16, or halves for all others."""
    return tensor_cores.mma_bf16 if name == "bf16" else tensor_cores.mma_f16


@cache
def mma_into(name: str) -> Any:
    """The device function that adds a product of A's four words and B's two to four sums from ``n`` on."""
    mma = mma_of(name)

    @inlined
    def add_product(a: Any, b0: Any, b1: Any, sums: Any, n: Any) -> None:
        v = mma(a[0], a[1], a[2], a[3], b0, b1, sums[n], sums[n + 1], sums[n + 2], sums[n + 3])
        sums[n], sums[n + 1], sums[n + 2], sums[n + 3] = v[0], v[1], v[2], v[3]

    return add_product


@cache
def clearer(eights: int) -> Any:
    """The device function that sets so many times eight numbers to zero."""

    def clear(j: Any, s: Any) -> None:
        for i in range(8):
            s[8 * j + i] = float32(0)

    return unrolled(eights, clear)


@inlined
def rows_first_place(lane: Any, pitch: Any) -> Any:
    """The offset that a lane names for ``ldmatrix`` of 16 × 16: A of rows, or B of values (transposed).

    Lanes 0 … 15 name rows, 16 … 31 the same rows 16 bytes on.
    """
    row = (lane & 7) + (lane & 8)
    return row * pitch + (lane >> 4) * 16


@inlined
def columns_first_place(lane: Any, pitch: Any) -> Any:
    """The offset that a lane names for ``ldmatrix`` of 16 × 16: B of keys, or A of values (transposed).

    Lanes 0 … 7 name rows 0 … 7, 8 … 15 the same 16 bytes on, 16 … 31 rows 8 … 15 alike.
    """
    row = (lane & 7) + (lane >> 4) * 8
    return row * pitch + (lane >> 3 & 1) * 16


# Which scores a lane 4 g + t has of its warp (the accumulator of ``mma``), and whose numbers make up a row:
#
#     queries are A (mma.py, hopper.py)                    K/V are A (swap_ab.py)
#     s[4 j + 2 r + i]: row g + 8 r,                       s[2 r + i]: row 2 t + r,
#                       position 8 j + 2 t + i                         position g + score_stride · i
#     row of a warp:  lanes 4 g … 4 g + 3                  row of a warp:  lanes t, t + 4, … t + 28
#                     (two exchanges, xor 1 and 2)                         (three exchanges, xor 4, 8 and 16)
#
# So every lane has scores of two rows, and the state of its rows stands in arrays of two:
#
#     row_max   largest score of the row so far, × log2 e     p       = 2 ** (score · factor - row_max)
#     row_sum   sum of p of this lane so far                  o_scale = 2 ** (row_max before - row_max)
#
# ``row_max`` is the same in all lanes of a row; ``row_sum`` is added over them once, in the epilogue.

# --- exponentials -----------------------------------------------------------------------------


@instruction("ex2.approx.ftz.f32 $0, $1;", f32, f32)
def power_of_two(a: Any) -> Any:
    """Two to the power of a, off by two units in the last place at most; 0 below the normal numbers."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp2(np.float32(a))


@instruction("rcp.approx.f32 $0, $1;", f32, f32)
def reciprocal(a: Any) -> Any:
    """1 / a, off by a unit in the last place at most; a division by rounding once is a call."""
    return np.float32(1) / np.float32(a)


@inlined
def hyperbolic_tangent(x: Any) -> Any:
    """Tanh x, by a power of two."""
    power = power_of_two(ptx.mul(x, TWICE_LOG2_E))
    return ptx.fma(float32(-2), reciprocal(ptx.add(float32(1), power)), float32(1))


# --- score options: soft cap, ALiBi, mask -----------------------------------------------------


class ScoreOptions(NamedTuple):
    """Numbers that change the scores of a lane's two rows."""

    mask: Any  # address of the first row's mask, or 0
    numbers: Any  # scale, cap, slopes of both rows
    places: Any  # positions of both rows, of which the last query has the last one; the number of all
    strides: Any  # bytes between positions of the mask, and between both rows


@inlined
def read_score_options(
    scale: Any, cap: Any, row: Any, step: Any, arguments: Any, length: Any
) -> Any:  # fmt: skip
    """Read what changes the scores of the rows ``row``, ``row`` + ``step``."""
    addresses, strides, sizes = arguments
    numbers, places = cuda.local.array(4, float32), cuda.local.array(3, int32)
    mask_strides = cuda.local.array(2, uint64)
    numbers[0], numbers[1] = ptx.float_of(scale), ptx.float_of(cap)
    mask, unit = uint64(0), uint32(cuda.blockIdx.z)
    sequence = unit // sizes.kv_heads
    for r in range(2):
        # row = head in the group · queries + query; rows past the end are clamped to the last
        this = uint32(min(row + uint32(r) * uint32(step), sizes.queries * sizes.group - 1))
        query = this % sizes.queries
        head = (unit - sequence * sizes.kv_heads) * sizes.group + this // sizes.queries
        places[r] = length - int32(sizes.queries) + int32(query)
        # A mask without slopes counts once; with neither there is nothing to add.
        numbers[2 + r] = float32(0) if addresses.mask == 0 else float32(1)
        if addresses.slopes != 0:
            numbers[2 + r] = ptx.load_float(addresses.slopes + head * uint64(4))
        at = (
            addresses.mask
            + sequence * strides.mask_sequence
            + head * strides.mask_head
            + query * strides.mask_query
        )
        if r == 0:
            mask = at
        mask_strides[1] = at - mask
    places[2], mask_strides[0] = int32(sizes.positions), strides.mask_position
    return ScoreOptions(mask if addresses.mask != 0 else uint64(0), numbers, places, mask_strides)


@cache
def score_modifier(plan: Any) -> Any:
    """The device function ``score_mod(s, at, options)``: scaled scores, capped, with slope · mask added.

    ``at``: the position of a lane's first score. Scores become natural ones: the factor of the softmax is
    then log2 e alone. Without a mask the slope is multiplied with the distance to the row's own position.
    """
    score_stride = plan.score_stride

    def quad(j: Any, s: Any, at: Any, options: Any) -> None:
        numbers, places = options.numbers, options.places
        scale, cap = numbers[0], numbers[1]
        for r in range(2):
            for i in range(2):
                position = at + int32(8 * j + score_stride * i)
                value = ptx.mul(s[4 * j + 2 * r + i], scale)
                if cap > float32(0):  # 0: no cap
                    value = ptx.mul(cap, hyperbolic_tangent(ptx.div(value, cap)))
                if options.mask == 0:
                    value = ptx.fma(numbers[2 + r], float32(position - places[r]), value)
                elif position < places[2]:  # the last step may go beyond the mask's end
                    row = options.mask + uint64(r) * options.strides[1]
                    place = row + uint64(position) * options.strides[0]
                    value = ptx.fma(numbers[2 + r], ptx.load_float(place), value)
                s[4 * j + 2 * r + i] = value

    return unrolled(plan.score_quads, quad)


# --- mask and online softmax ------------------------------------------------------------------


class SoftmaxState(NamedTuple):
    """The running state of a lane's two rows: arrays of two numbers."""

    row_max: Any
    row_sum: Any  # of this lane's scores
    o_scale: Any  # of the last step: what sums before it are to be multiplied by


@inlined
def softmax_state() -> Any:
    """The arrays of a state; :func:`start_rows` sets them."""
    row_max, row_sum = cuda.local.array(2, float32), cuda.local.array(2, float32)
    return SoftmaxState(row_max, row_sum, cuda.local.array(2, float32))


@inlined
def start_rows(state: Any) -> None:
    """Set the state of rows that have seen nothing."""
    for r in range(2):
        state.row_max[r], state.row_sum[r] = MINUS_INFINITY, float32(0)


@cache
def row_reducer(plan: Any, combine: Any) -> Any:
    """The device function that combines a number of each lane that has scores of the same row."""
    swap_ab = plan.swap_ab

    @inlined
    def reduced(value: Any) -> Any:
        if swap_ab:  # lanes of the same t
            value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
            value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
            return combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))
        # lanes of the same g
        value = combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
        return combine(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))

    return reduced


@cache
def exponentials_maker(plan: Any) -> Any:
    """The device function ``online_softmax(s, factor, state)``: scores become p, the state goes on.

    ``factor`` makes scores powers of two. It returns True where a maximum of the warp grows: sums of p times
    values so far are then to be rescaled by ``state.o_scale``. The warp agrees on that, and branches as one.
    """
    quads, max_of_row = plan.score_quads, row_reducer(plan, ptx.larger)

    def largest(j: Any, s: Any, most: Any) -> None:
        for r in range(2):
            most[r] = ptx.larger(most[r], ptx.larger(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]))

    def power(j: Any, s: Any, factor: Any, bases: Any, sums: Any) -> None:
        for r in range(2):
            for i in range(2):
                p = power_of_two(ptx.fma(s[4 * j + 2 * r + i], factor, -bases[r]))
                s[4 * j + 2 * r + i] = p
                sums[r] = ptx.add(sums[r], p)

    find_largest, take_powers = unrolled(quads, largest), unrolled(quads, power)

    @inlined
    def online_softmax(s: Any, factor: Any, state: Any) -> Any:
        most, bases = cuda.local.array(2, float32), cuda.local.array(2, float32)
        sums = cuda.local.array(2, float32)
        for r in range(2):
            most[r], sums[r] = MINUS_INFINITY, float32(0)
        # the maximum of the lane's scores, then of the row's, then of all steps so far
        find_largest(s, most)
        grown = uint32(0)
        for r in range(2):
            most[r] = max_of_row(most[r])
            most[r] = ptx.larger(state.row_max[r], ptx.mul(most[r], factor))
            # Finite: a row that has seen nothing would else have -inf - -inf, a NaN that stays in its sums.
            bases[r] = ptx.larger(most[r], LOWEST_FINITE)
            # 2 ** (before - now): 1 if nothing grew, 0 at the first step, where there is nothing to rescale
            state.o_scale[r] = power_of_two(ptx.sub(state.row_max[r], bases[r]))
            grown |= uint32(most[r] > state.row_max[r])
            state.row_max[r] = most[r]
        # One fma makes each exponent: score · factor - maximum, rounded once.
        take_powers(s, factor, bases, sums)
        for r in range(2):
            state.row_sum[r] = ptx.fma(state.row_sum[r], state.o_scale[r], sums[r])
        return lane.lanes_where_equal(grown, uint32(0)) != ALL_LANES

    return online_softmax


@cache
def masked_softmax(plan: Any) -> Any:
    """The device function that masks a step's scores where need be and goes on with the online softmax.

    ``origin``: the step's first position, ``column``: that of the lane's first score in it. A step that all
    rows of the block see in full needs no mask. It returns what ``online_softmax`` does.
    """
    step, score_stride, online_softmax = plan.positions, plan.score_stride, exponentials_maker(plan)

    def quad(j: Any, s: Any, at: Any, seen: Any) -> None:
        for r in range(2):
            for i in range(2):
                position = at + int32(8 * j + score_stride * i)
                if position < seen.begins[r] or position >= seen.ends[r]:
                    s[4 * j + 2 * r + i] = MINUS_INFINITY

    mask = unrolled(plan.score_quads, quad)

    @inlined
    def softmax(s: Any, origin: Any, column: Any, kv: Any, seen: Any, factor: Any, state: Any) -> Any:
        if origin < kv.common_begin or origin + int32(step) > kv.common_end:
            mask(s, origin + column, seen)
        return online_softmax(s, factor, state)

    return softmax


@cache
def o_rescaler(plan: Any) -> Any:
    """The device function ``rescale_o(o, state)``: sums of both rows times their ``o_scale``."""

    def quad(j: Any, o: Any, state: Any) -> None:
        for r in range(2):
            for i in range(2):
                o[4 * j + 2 * r + i] = ptx.mul(o[4 * j + 2 * r + i], state.o_scale[r])

    return unrolled(plan.o_count // 4, quad)


# --- a step's softmax, of mma.py and swap_ab.py -----------------------------------------------


class LaneRows(NamedTuple):
    """The two query rows of a lane."""

    seen: Any  # RowRanges
    options: Any  # ScoreOptions, or of no use
    factor: Any  # makes scores powers of two
    state: Any  # SoftmaxState


@cache
def lane_rows_maker(plan: Any) -> Any:
    """The device function for the rows ``row``, ``row`` + ``step`` of a lane before the first step.

    Its caller sets their state by ``start_rows``, swap_ab behind the clearing of o: machine code hangs on it.
    """
    has_options = plan.options

    @inlined
    def rows_of_lane(
        row: Any, step: Any, arguments: Any, length: Any, scale: Any, cap: Any
    ) -> Any:  # fmt: skip
        seen, options = new_row_ranges(), uint32(0)
        find_row_ranges(seen, row, step, arguments.sizes, length)
        # score_mod makes natural scores of them; without it the scale joins the factor of the exponential
        if has_options:
            options = read_score_options(scale, cap, row, step, arguments, length)
        factor = LOG2_E if has_options else ptx.mul(ptx.float_of(scale), LOG2_E)
        return LaneRows(seen, options, factor, softmax_state())

    return rows_of_lane


@cache
def softmax_step(plan: Any) -> Any:
    """The device function that makes p of the scores of a step; sums o so far are rescaled where need be.

    ``column``: position of the lane's first score in the step.
    """
    score_mod, softmax, rescale_o = score_modifier(plan), masked_softmax(plan), o_rescaler(plan)
    positions, has_options = plan.positions, plan.options

    @inlined
    def softmax_of_step(s: Any, o: Any, step: Any, column: Any, kv: Any, rows: Any) -> None:
        origin = step * int32(positions)
        if has_options:
            score_mod(s, origin + column, rows.options)
        # o is multiplied only where a maximum of the warp has grown; else its scale is 1.
        if softmax(s, origin, column, kv, rows.seen, rows.factor, rows.state):
            rescale_o(o, rows.state)

    return softmax_of_step
