"""The search of the encoders of iq1_s and iq1_m: weights to rows of the code book of -1, 0 and 1.

The weights under one scale are split in three; groups of eight that are no row of
the book then get the nearest row, and the scale is fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import iq1_m, iq1_s
from ...formats.format import Bytes, Floats
from ..machine.jit import inline, jit
from .books import (
    BLOCK,
    codes_at,
    finder,
    largest_scale,
    level_of,
    nearest,
    neighbours,
    row_at,
    sum_of_squares,
    weigher,
)
from .program import LANES, get, put, some, where, zeros

HALF, EIGHTS = np.float32(0.5), BLOCK // 8
level, nearest_row = level_of(3, False), finder(8, 3, False)
weigh = weigher(BLOCK, 2, 0)


class Result(NamedTuple):
    """Blocks [rows, n] before their bits are packed."""

    d: NDArray[Any]  # [rows, n] halves in the end
    scale: NDArray[np.uint8]  # [rows, n, runs]
    row: NDArray[np.int16]  # [rows, n, 32]
    down: NDArray[np.uint8]  # [rows, n, 32] 1 where the levels are an eighth lower, not higher


class Scratch(NamedTuple):
    """A block at work."""

    weight: Floats  # [256] importance
    order: NDArray[np.int64]  # [runs, run] sorted places
    x: Floats  # [run, lanes] the sorted runs
    w: Floats  # [run, lanes] their importance
    first: Floats  # [run, lanes] 1 for the first eight
    best: Floats  # [3, lanes] score, scale and choice
    scale: Floats  # [runs]
    codes: NDArray[np.int32]  # [32] levels of the rows


@cache
def searcher(
    run: int, smallest: float, stretch: float, refit: bool
) -> Callable[[Floats, Floats | None], Result]:
    """``search(values, imatrix)``: rows of floats [rows, K] to rows of the code book.

    ``run`` weights share a scale; a run without a weight as large as ``smallest`` is zero. The
    stored d is ``stretch`` times a 15th of the largest scale or, to ``refit``, a fit to the block.
    """
    runs, kernel = BLOCK // run, _kernel(run, smallest, stretch, refit)

    def search(values: Floats, imatrix: Floats | None) -> Result:
        blocks = values.shape[0], values.shape[1] // BLOCK
        result = Result(
            np.zeros(blocks, np.float32),
            np.zeros((*blocks, runs), np.uint8),
            np.zeros((*blocks, EIGHTS), np.int16),
            np.zeros((*blocks, EIGHTS), np.uint8),
        )
        scratch = Scratch(
            np.empty(BLOCK, np.float32),
            np.empty((runs, run), np.int64),
            np.zeros((run, LANES), np.float32),
            np.zeros((run, LANES), np.float32),
            np.zeros((run, LANES), np.float32),
            np.empty((3, LANES), np.float32),
            np.empty(runs, np.float32),
            np.empty(EIGHTS, np.int32),
        )
        kernel(values, imatrix, neighbours("iq1", 3), scratch, result)
        with np.errstate(over="ignore"):
            return result._replace(d=result.d.astype(np.float16))

    return search


@inline
def base_of(down: Any) -> Any:
    """The lowest of the three levels."""
    return -EIGHTH - ONE if down else EIGHTH - ONE


@inline
def add(x: Any, s: Any, eight: Any, down: Any, factor: Any, xq: Any, qq: Any) -> Any:
    """The sums of a fit, with eight weights and their row added."""
    for i in range(8):
        q = level(s.codes[eight], i, base_of(down)) * factor
        w = s.weight[eight * 8 + i]
        xq += w * q * x[eight * 8 + i]
        qq += w * q * q
    return xq, qq


def _kernel(run: int, smallest: float, stretch: float, refit: bool) -> Any:
    runs, eights = BLOCK // run, run // 8
    least, times = np.float32(smallest), np.float32(stretch)
    split = split_by_halves if run == 16 else split_alike

    @inline
    def prepare(x: Any, s: Any) -> None:
        """Sort every run into its lane; a run too small to count weighs nothing."""
        for i in range(runs):
            order, largest = s.order[i], ZERO
            sort(x, i * run, order)
            for j in range(run):
                largest = max(largest, abs(x[i * run + j]))
            for j in range(run):
                at = i * run + order[j]
                s.x[j, i], s.first[j, i] = x[at], ONE if order[j] < 8 else ZERO
                s.w[j, i] = s.weight[at] if largest >= least else ZERO

    @inline
    def place(x: Any, s: Any, i: Any, choice: Any, scale: Any, table: Any, row: Any, down: Any) -> Any:
        """The rows of a run, and its scale fitted to them."""
        low, high, moved, mirror = choice >> 8, choice >> 2 & 63, choice & 3, scale < ZERO
        numbers = np.empty(run, np.int32)
        for j in range(run):
            number = 0 if j < low else 1 if j < high else 2
            numbers[s.order[i, j]] = 2 - number if mirror else number
        if mirror:
            scale, moved = -scale, moved ^ 3
        exact, xq, qq = True, ZERO, ZERO
        for k in range(eights):
            eight, point = i * eights + k, 0
            down[eight] = moved >> 1 if k == 0 else moved & 1
            for j in range(8 * k + 7, 8 * k - 1, -1):
                point = point * 3 + numbers[j]
            at = nearest_row(x, s.weight, eight * 8, scale, base_of(down[eight]), point, table)
            row[eight], s.codes[eight] = row_at(table, at), codes_at(table, at)
            exact = exact and table.exact[point]
            xq, qq = add(x, s, eight, down[eight], ONE, xq, qq)
        return xq / qq if not exact and xq > ZERO and qq > ZERO else scale

    @inline
    def settle(x: Any, s: Any, d: Any, number: Any, down: Any) -> Any:
        """Scales as numbers of three bits; the d that they multiply."""
        xq, qq = ZERO, ZERO
        for i in range(runs):
            number[i] = max(np.int32(0), min(np.int32(7), nearest(HALF * (ONE / d * s.scale[i] - ONE))))
            if refit:
                factor = np.float32(2 * np.int64(number[i]) + 1)
                for eight in range(i * eights, (i + 1) * eights):
                    xq, qq = add(x, s, eight, down[eight], factor, xq, qq)
        return xq / qq if qq > ZERO and d < np.float32(np.inf) else d

    @jit
    def kernel(values: Any, imatrix: Any, table: Any, s: Any, result: Any) -> None:
        for at in np.ndindex(result.d.shape):
            start = at[1] * BLOCK
            x, row, down = values[at[0], start : start + BLOCK], result.row[at], result.down[at]
            squares = sum_of_squares(x, 0)
            weigh(values[at[0]], imatrix, start, squares, s.weight)
            prepare(x, s)
            split(s.x, s.w, s.first, s.best)
            s.codes[:] = 0
            for i in range(runs):
                s.scale[i], choice = s.best[1, i], np.int64(s.best[2, i])
                if choice >= 0:
                    s.scale[i] = place(x, s, i, choice, s.scale[i], table, row, down)
            most = largest_scale(s.scale, squares)
            if most == ZERO:
                down[:] = 0
            else:
                result.d[at] = times * settle(x, s, most / np.float32(15), result.scale[at], down)

    return kernel


# --- The split of sorted weights in three, for the iq1 encoders: the lowest count -1, the highest 1, the
# rest 0
#
# All borders between the sorted weights are tried, with levels an eighth higher or lower; the best fit
# wins. A run is a lane, and its sums stand in ggml's order. A choice is the number ``(low * 64 + high) * 4
# + down``: the lowest ``low`` weights count -1, those from ``high`` on 1; bit 1 of ``down`` lowers the
# levels of the first eight weights, bit 0 those of the rest.

ZERO, ONE, TWO, EIGHTH = np.float32(0), np.float32(1), np.float32(2), np.float32(0.125)
LOWEST = np.finfo(np.float32).min


@inline
def sort(x: Any, start: Any, order: Any) -> None:
    """Write to ``order`` the places of a run, sorted by its values; of equal values the first comes first."""
    for i in range(len(order)):
        j = i
        while j > 0 and x[start + i] < x[start + order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@inline
def keep_better(xq: Any, qq: Any, choice: Any, best: Any) -> None:
    """Write candidates over worse ones in ``best``, which holds score, scale and choice."""
    better = (qq > ZERO) & (xq * xq > get(best, 0) * qq)
    if some(better):
        scale = xq / qq
        put(best, 0, where(better, scale * xq, get(best, 0)))
        put(best, 1, where(better, scale, get(best, 1)))
        put(best, 2, where(better, np.float32(choice), get(best, 2)))


@inline
def begin(best: Any) -> None:
    put(best, 0, zeros(best) + LOWEST)
    put(best, 1, zeros(best))
    put(best, 2, zeros(best) - ONE)


@inline
def mid_of(s: Any) -> Any:
    """The middle level: lowered for an odd s."""
    return -EIGHTH if s % 2 else EIGHTH


@jit
def split_alike(x: Any, weight: Any, first: Any, best: Any) -> None:
    """Split sorted runs where all levels are moved alike (iq1_s), by differences of running sums."""
    count = len(x)
    xs, ws = np.zeros((count + 1, LANES), np.float32), np.zeros((count + 1, LANES), np.float32)
    for j in range(count):
        put(xs, j + 1, get(xs, j) + get(weight, j) * get(x, j))
        put(ws, j + 1, get(ws, j) + get(weight, j))
    begin(best)
    for low in range(count + 1):
        for high in range(low, count + 1):
            for down in range(0, 4, 3):
                mid = -EIGHTH if down else EIGHTH
                xq = get(xs, low) * (mid - ONE) + (get(xs, high) - get(xs, low)) * mid
                xq = xq + (get(xs, count) - get(xs, high)) * (mid + ONE)
                qq = get(ws, low) * (mid - ONE) * (mid - ONE) + (get(ws, high) - get(ws, low)) * mid * mid
                qq = qq + (get(ws, count) - get(ws, high)) * (mid + ONE) * (mid + ONE)
                keep_better(xq, qq, (low * 64 + high) * 4 + down, best)


@jit
def split_by_halves(x: Any, weight: Any, first: Any, best: Any) -> None:
    """Split sorted runs of two eights with levels moved separately (iq1_m), by running sums of each eight.

    ``first`` is 1 where a weight is of the first eight. With top level t, each eight has the sums
    ``t X - (x[low] + x[high])`` and ``t t W + (l l - m m) w[low] + (m m - t t) w[high]``, where l
    and m are the lower levels, X and W the whole sums.
    """
    count = len(x)
    xs, ws = np.zeros((2, 2, count + 1, LANES), np.float32)
    for j in range(count):
        early, w = get(first, j) > ZERO, get(weight, j)
        wx = w * get(x, j)
        for eight in range(2):
            inside = early if eight == 0 else ~early
            put(xs[eight], j + 1, where(inside, get(xs[eight], j) + wx, get(xs[eight], j)))
            put(ws[eight], j + 1, where(inside, get(ws[eight], j) + w, get(ws[eight], j)))
    top_x, low_w, both_x, both_w = np.empty((4, 4, LANES), np.float32)  # [eight * 2 + down, lane]
    for s in range(4):
        put(top_x, s, (mid_of(s) + ONE) * get(xs[s // 2], count))
    begin(best)
    for low in range(count + 1):
        for s in range(4):
            whole = (mid_of(s) + ONE) * get(ws[s // 2], count) * (mid_of(s) + ONE)
            put(low_w, s, (ONE - TWO * mid_of(s)) * get(ws[s // 2], low) + whole)
        for high in range(low, count + 1):
            for s in range(4):
                both = get(xs[s // 2], low) + get(xs[s // 2], high)
                put(both_x, s, get(top_x, s) - both)
                put(both_w, s, (-ONE - TWO * mid_of(s)) * get(ws[s // 2], high) + get(low_w, s))
            for down in range(4):
                one, two = down // 2, 2 + down % 2
                xq, qq = get(both_x, one) + get(both_x, two), get(both_w, one) + get(both_w, two)
                keep_better(xq, qq, (low * 64 + high) * 4 + down, best)


# --- Encode iq1_s: 32 sorted weights are split in three at the best borders -----------------------


def encode_iq1_s(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq1_s: 32 sorted weights are split in three at the best borders."""
    result = searcher(run=32, smallest=1e-12, stretch=1.125, refit=False)(values, imatrix)
    out = blocks.view(iq1_s.DTYPE)
    high = (result.row >> 8).astype(np.uint16).reshape(*out.shape, 8, 4)
    top = result.scale.astype(np.uint16) | result.down[..., ::4].astype(np.uint16) << 3
    out["d"] = result.d
    out["qs"] = result.row
    out["qh"] = np.bitwise_or.reduce(high << iq1_s.SHIFTS, axis=-1) | top << 12


# --- Encode iq1_m: 16 sorted weights are split in three at the best borders; d is fitted to the block ---

QUARTERS = np.array([12, 8, 4, 0], np.uint16)  # d's four bits go to the top of each word


def encode_iq1_m(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq1_m: 16 sorted weights are split in three at the best borders; d is fitted to the block."""
    result = searcher(run=16, smallest=1e-7, stretch=1.1125, refit=True)(values, imatrix)
    out = blocks.view(iq1_m.DTYPE)
    nibble = (result.row >> 8).astype(np.uint8) | result.down << 3
    scales = result.scale.astype(np.uint16).reshape(*out.shape, 4, 4) << iq1_m.SHIFTS
    quarter = result.d.view(np.uint16)[..., None] << QUARTERS & 0xF000
    out["qs"] = result.row
    out["qh"] = nibble[..., ::2] | nibble[..., 1::2] << 4
    out["scales"] = (np.bitwise_or.reduce(scales, axis=-1) | quarter).view(np.uint8)
