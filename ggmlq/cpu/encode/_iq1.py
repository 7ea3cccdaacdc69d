"""The search of the encoders of iq1_s and iq1_m: weights to rows of the code book of -1, 0 and 1.

The weights under one scale are split in three (``_thirds.py``); groups of eight that are no row of
the book then get the nearest row, and the scale is fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats.format import Floats
from ..machine.jit import inline, jit
from ._importance import BLOCK, largest_scale, sum_of_squares, weigher
from ._nearest import codes_at, finder, level_of, row_at
from ._neighbours import neighbours
from ._program import LANES
from ._rounding import nearest
from ._thirds import EIGHTH, ONE, ZERO, sort, split_alike, split_by_halves

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
