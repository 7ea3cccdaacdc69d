"""The small parts of a mixture of experts, a launch each: scores, the choice with its weights, weighted sums.

The largest scores come one after the other, of equal ones the expert of the lower number. Shares are those of
a softmax over all experts, or over those chosen; exponentials are the GPU's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..driver.device import cupy
from ..driver.launch import Kernel, array, family
from ..intrinsics import hopper, ptx
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, int64, uint32
from .layers import LOG2_E, ROWS, THREADS, VECTOR, power_of_two

ROWS_OF_WARP = 4  # of activations, which a warp multiplies with one row of weights
WARP = 32  # lanes, and the most experts of a token
MAX_EXPERTS = 1024
CHOSEN = -3e38  # in place of a score that was chosen
MIN_SUM = 2.0**-14  # of shares that are divided by it
HALVES_OF_A_WARP = 16, 8, 4, 2, 1  # distances of lanes whose values are combined


# --- scores -----------------------------------------------------------------------------------


@family()
def scorer() -> Kernel:
    """The kernel of products of few floats: a warp has four rows and one column of the result."""
    warps, steps = THREADS // WARP, HALVES_OF_A_WARP

    def kernel(
        x: Any,  # float32 [rows, columns]
        w: Any,  # float32 [experts, columns]
        out: Any,  # float32 [rows, experts]
        rows: Any,
        experts: Any,
        columns: Any,
    ) -> None:
        hopper.take_turn()
        lane = uint32(cuda.threadIdx.x) & 31
        expert = uint32(cuda.blockIdx.x) * warps + (uint32(cuda.threadIdx.x) >> 5)
        if expert < experts:
            row, last = uint32(cuda.blockIdx.y) * ROWS_OF_WARP, rows - 1
            r1, r2, r3 = min(row + 1, last), min(row + 2, last), min(row + 3, last)
            a, b, c, d, at = float32(0), float32(0), float32(0), float32(0), lane
            while at < columns:
                value = w[expert, at]
                a, b = ptx.fma(x[row, at], value, a), ptx.fma(x[r1, at], value, b)
                c, d = ptx.fma(x[r2, at], value, c), ptx.fma(x[r3, at], value, d)
                at = uint32(at + 32)
            for step in steps:
                a = ptx.add(a, cuda.shfl_xor_sync(ALL_LANES, a, step))
                b = ptx.add(b, cuda.shfl_xor_sync(ALL_LANES, b, step))
                c = ptx.add(c, cuda.shfl_xor_sync(ALL_LANES, c, step))
                d = ptx.add(d, cuda.shfl_xor_sync(ALL_LANES, d, step))
            if lane == 0:
                out[row, expert] = a
                if row + 1 < rows:
                    out[r1, expert] = b
                if row + 2 < rows:
                    out[r2, expert] = c
                if row + 3 < rows:
                    out[r3, expert] = d

    parameters = ROWS, ROWS, ROWS, uint32, uint32, uint32
    return Kernel("scores of experts", kernel, *parameters, threads=THREADS, early=True)


def scored(x: Any, w: Any) -> Any:
    """Rows x [T, K] times few rows w [E, K] of float32, [T, E]."""
    xp, (rows, columns), experts = cupy(), x.shape, len(w)
    out = xp.empty((rows, experts), np.float32)
    grid = -(-experts // (THREADS // 32)), -(-rows // ROWS_OF_WARP)
    scorer()(grid, (THREADS,), xp.ascontiguousarray(x), xp.ascontiguousarray(w), out, rows, experts, columns)
    return out


# --- the choice -------------------------------------------------------------------------------


@family()
def router() -> Kernel:
    """The kernel of the choice."""
    steps = HALVES_OF_A_WARP

    def kernel(
        scores: Any,  # float32 [T, E]
        ids: Any,  # int64 [T · U]
        weights: Any,  # float32 [T · U]
        experts: Any,
        used: Any,
        after: Any,  # shares are those among the experts chosen
        of_one: Any,  # shares of the experts chosen are made to add up to 1
        scale: Any,  # bits of a float
    ) -> None:
        hopper.take_turn()
        lane, token = int32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        values = cuda.shared.array(MAX_EXPERTS, float32)
        top, at, count = float32(CHOSEN), lane, int32(experts)
        while at < count:
            value = scores[token, at]
            values[at] = value
            top = ptx.larger(top, value)
            at = int32(at + int32(WARP))
        for step in steps:
            top = ptx.larger(top, cuda.shfl_xor_sync(ALL_LANES, top, step))
        total, at = float32(0), lane
        while at < count:
            total = ptx.add(total, power_of_two(ptx.mul(ptx.sub(values[at], top), float32(LOG2_E))))
            at = int32(at + int32(WARP))
        for step in steps:
            total = ptx.add(total, cuda.shfl_xor_sync(ALL_LANES, total, step))
        share, number, chosen, taken = float32(0), int32(0), float32(0), int32(0)
        while taken < int32(used):
            best, place, at = float32(CHOSEN), count, lane
            while at < count:
                if values[at] > best:
                    best, place = values[at], at
                at = int32(at + int32(WARP))
            for step in steps:
                other = cuda.shfl_xor_sync(ALL_LANES, best, step)
                other_place = cuda.shfl_xor_sync(ALL_LANES, place, step)
                if other > best or (other == best and other_place < place):
                    best, place = other, other_place
            place = min(place, int32(count - int32(1)))  # scores that are no numbers choose the last one
            if place % int32(WARP) == lane:  # the lane that looks at this score
                values[place] = float32(CHOSEN)
            cuda.syncwarp()  # all lanes see that it was chosen
            weight = power_of_two(ptx.mul(ptx.sub(best, top), float32(LOG2_E)))
            chosen = ptx.add(chosen, weight)
            if taken == lane:
                share, number = weight, place
            taken = int32(taken + int32(1))
        if lane < int32(used):
            if after != 0:
                share = ptx.div(share, chosen)
            else:
                share = ptx.div(share, total)
                if of_one != 0:
                    share = ptx.div(share, ptx.larger(ptx.div(chosen, total), float32(MIN_SUM)))
            to = int64(token) * int64(used) + int64(lane)
            ids[to] = int64(number)
            weights[to] = ptx.mul(share, ptx.float_of(scale))

    parameters = ROWS, array(int64, 1), VECTOR, uint32, uint32, uint32, uint32, uint32
    return Kernel("choice of experts", kernel, *parameters, threads=WARP, early=True)


def takes(experts: int, used: int) -> bool:
    """True where the kernel makes a choice of so many among so many."""
    return experts <= MAX_EXPERTS and used <= WARP


def routed(scores: Any, used: int, after: bool, of_one: bool, scale: float) -> tuple[Any, Any]:
    """The experts [T, U] of the largest scores [T, E] and their weights, times ``scale``.

    ``after``: a softmax of the scores chosen. ``of_one``: shares of a softmax over all, made to add up to 1.
    """
    xp, (tokens, experts) = cupy(), scores.shape
    ids, weights = xp.empty(tokens * used, np.int64), xp.empty(tokens * used, np.float32)
    bits = int(np.float32(scale).view(np.uint32))
    router()(
        (tokens,), (WARP,), xp.ascontiguousarray(scores), ids, weights, experts, used, int(after),
        int(of_one), bits,
    )  # fmt: skip
    return ids.reshape(tokens, used), weights.reshape(tokens, used)


# --- sums -------------------------------------------------------------------------------------


@family()
def mixer() -> Kernel:
    """The kernel that adds up the results of a token's experts by their weights."""

    def kernel(
        y: Any,  # float32 [T · U, columns]
        weights: Any,  # float32 [T · U]
        out: Any,  # float32 [T, columns]
        used: Any,
        columns: Any,
    ) -> None:
        hopper.take_turn()
        token = uint32(cuda.blockIdx.y)
        column = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if column < columns:
            total, use, end = float32(0), token * used, (token + 1) * used
            while use < end:
                total = ptx.fma(y[use, column], weights[use], total)
                use = uint32(use + 1)
            out[token, column] = total

    parameters = ROWS, VECTOR, ROWS, uint32, uint32
    return Kernel("weighted sum of experts", kernel, *parameters, threads=THREADS, early=True)


def mixed(y: Any, weights: Any) -> Any:
    """Results of experts [T, U, N] added up by weights [T, U], [T, N]."""
    xp, (tokens, used, columns) = cupy(), y.shape
    out = xp.empty((tokens, columns), np.float32)
    rows, flat = xp.ascontiguousarray(y).reshape(-1, columns), xp.ascontiguousarray(weights).reshape(-1)
    mixer()((-(-columns // THREADS), tokens), (THREADS,), rows, flat, out, used, columns)
    return out
