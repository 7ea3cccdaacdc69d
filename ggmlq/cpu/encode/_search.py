"""The search that the encoders of IQ2 and IQ3 share: rows of a code book, signs and scales.

For every run of weights under one scale, ggml tries a dozen or more scales. Each rounds every
weight to a level, takes the row of the code book nearest to each group of levels, and fits the
scale to these rows; the best fit is then refined once. A format's file says what it does its own
way and packs the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats._grids import grid
from ...formats.format import Floats
from ..machine.jit import inline, jit
from ._fit import HALF, ONE, ZERO, candidates, fitter
from ._importance import BLOCK, largest_scale, sum_of_squares, weigher
from ._neighbours import neighbours
from ._rounding import nearest


@dataclass(frozen=True)
class Search:
    """Settings of the search of a format."""

    book: str  # name of the code book
    distances: int  # distances at which rows are tried for a point outside the book
    run: int  # weights that share a scale
    tries: int  # scales tried to each side of the first
    step: float  # from one to the next; the first gives the largest weight 2 * levels - 1
    even_signs: bool  # of eight weights an even number is stored with a minus
    times: int  # see weigher
    plain: float  # see weigher
    smallest: float  # a run without a weight so large is zero
    again: str  # the groups that are rounded once more, see fitter
    clear: bool  # a block whose scales are all zero is zero bytes
    stretch: float  # the stored d is so many times a 31st of the largest scale
    first: Callable[..., Any] | None = None  # finds the first scales; the largest weights give them else


class Result(NamedTuple):
    """Blocks [rows, n] before their bits are packed."""

    d: NDArray[Any]  # [rows, n] halves in the end
    scale: NDArray[np.uint8]  # [rows, n, runs]
    row: NDArray[np.int16]  # [rows, n, groups]
    minus: NDArray[np.uint8]  # [rows, n, 32] a bit a weight, the first one's lowest
    live: NDArray[np.bool_]  # [rows, n, runs] not taken for zero


class Runs(NamedTuple):
    """Scratch: the runs of a block."""

    x: Floats  # [runs, run] magnitudes
    weight: Floats  # [runs, run] importance
    root: Floats  # [runs, run] its square root
    divisor: Floats  # [runs] a candidate's inverse scale is its numerator over this; 0 skips the run
    scale: Floats  # [runs]


def searcher(how: Search) -> Callable[[Floats, Floats | None], Result]:
    """``search(values, imatrix)``: rows of floats [rows, K] to rows of the code book."""
    book, runs, kernel = grid(how.book), BLOCK // how.run, _kernel(how)
    top = np.float32(2 * len(np.unique(book)) - 1)
    steps = np.arange(-how.tries, how.tries + 1).astype(np.float32) * np.float32(how.step)

    def search(values: Floats, imatrix: Floats | None) -> Result:
        blocks = values.shape[0], values.shape[1] // BLOCK
        result = Result(
            np.zeros(blocks, np.float32),
            np.zeros((*blocks, runs), np.uint8),
            np.zeros((*blocks, BLOCK // book.shape[1]), np.int16),
            np.zeros((*blocks, BLOCK // 8), np.uint8),
            np.zeros((*blocks, runs), np.bool_),
        )
        scratch = Runs(*(np.empty(shape, np.float32) for shape in [(runs, how.run)] * 3 + [(runs,)] * 2))
        tried = candidates(how.run // book.shape[1], len(steps))
        kernel(values, imatrix, top + steps, neighbours(how.book, how.distances), scratch, tried, result)
        with np.errstate(over="ignore"):
            return result._replace(d=result.d.astype(np.float16))

    return search


def _kernel(how: Search) -> Any:
    book, run = grid(how.book), how.run
    size, levels = book.shape[1], len(np.unique(book))
    groups, eights, runs = run // size, run // 8, BLOCK // run
    clear, smallest, stretch = how.clear, np.float32(how.smallest), np.float32(how.stretch)
    weigh, split = weigher(run, how.times, how.plain), _splitter(run, how.even_signs)
    fit = fitter(size, levels, run, 2 * how.tries + 1, how.again)
    first = how.first or _by_largest
    top = np.float32(2 * levels - 1)

    @inline
    def prepare(x: Any, imatrix: Any, start: Any, runs_of: Any, minus: Any) -> Any:
        """Importance, magnitudes and signs of a block; where the searches start."""
        squares = sum_of_squares(x, start)
        for i in range(runs):
            weigh(x, imatrix, start + i * run, squares, runs_of.weight[i])
            for j in range(run):
                runs_of.root[i, j] = np.sqrt(runs_of.weight[i, j])
            split(x, start + i * run, runs_of.weight[i], runs_of.x[i], minus[i * eights :])
            largest = runs_of.x[i, 0]
            for j in range(1, run):
                largest = max(largest, runs_of.x[i, j])
            runs_of.divisor[i] = largest if largest >= smallest else ZERO
        first(runs_of, top)
        return squares

    @inline
    def settle(runs_of: Any, squares: Any, out: Any, at: Any) -> None:
        """The scales of a block as numbers of four bits."""
        most = largest_scale(runs_of.scale, squares)
        if most == ZERO:
            if clear:
                out.row[at] = 0
                out.minus[at] = 0
            return
        d = most / np.float32(31)
        out.d[at] = d * stretch
        for i in range(runs):
            number = nearest(HALF * (ONE / d * runs_of.scale[i] - ONE))
            out.scale[at][i] = max(np.int32(0), min(np.int32(15), number))

    @jit
    def kernel(
        values: Any, imatrix: Any, numerators: Any, table: Any, runs_of: Any, tried: Any, result: Any
    ) -> None:
        for at in np.ndindex(result.d.shape):
            minus = result.minus[at]
            squares = prepare(values[at[0]], imatrix, at[1] * BLOCK, runs_of, minus)
            for i in range(runs):
                x, weight, root = runs_of.x[i], runs_of.weight[i], runs_of.root[i]
                divisor, scale = runs_of.divisor[i], ZERO
                if divisor > ZERO:
                    row = result.row[at][i * groups : (i + 1) * groups]
                    scale = fit(x, weight, root, row, numerators, divisor, runs_of.scale[i], table, tried)
                result.live[at][i] = divisor > ZERO
                for k in range(i * eights, (i + 1) * eights):
                    if scale < ZERO:
                        minus[k] ^= 255
                    if not divisor > ZERO:
                        minus[k] = 0
                runs_of.scale[i] = abs(scale)
            settle(runs_of, squares, result, at)

    return kernel


@inline
def _by_largest(runs_of: Any, top: Any) -> None:
    for i in range(len(runs_of.scale)):
        runs_of.scale[i] = runs_of.divisor[i] / top


def _splitter(run: int, even_signs: bool) -> Any:
    @inline
    def split(x: Any, start: Any, weight: Any, size: Any, minus: Any) -> None:
        """Magnitudes and signs; with an odd number of minus signs the sign that costs least is flipped."""
        for k in range(run // 8):
            signs, odd = np.int64(0), np.int64(0)
            for i in range(8 * k, 8 * k + 8):
                negative = np.int64(x[start + i] < ZERO)
                size[i] = -x[start + i] if negative else x[start + i]
                signs |= negative << i - 8 * k
                odd ^= negative
            if even_signs and odd:
                flipped, least = 8 * k, np.float32(np.inf)
                for i in range(8 * k, 8 * k + 8):
                    cost = weight[i] * x[start + i] * x[start + i]
                    if cost < least:
                        flipped, least = i, cost
                size[flipped] = -size[flipped]
                signs ^= np.int64(1) << flipped - 8 * k
            minus[k] = signs

    return split
