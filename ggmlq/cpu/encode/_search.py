"""The search that the encoders of IQ2 and IQ3 share: rows of a code book, signs and scales.

For every run of weights under one scale, ggml tries a dozen or more scales. Each rounds every
weight to a level, takes the row of the code book nearest to each group of levels, and fits the
scale to these rows; the best fit is then refined once. A format's file says what it does its own
way and packs the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats._grids import grid
from ..jit import inline, jit
from ._fit import ONE, ZERO, HALF, Run, candidates, fitter
from ._neighbours import neighbours
from ._rounding import nearest

BLOCK = 256


@dataclass(frozen=True)
class Search:
    """What a format's search does its own way."""

    book: str  # its code book
    wanted: int  # distances at which rows are tried for a point outside the book
    run: int  # weights that share a scale
    tries: int  # scales tried to each side of the first
    step: float  # from one to the next, against 2 * levels - 1 for the first
    even_signs: bool  # of eight weights an even number is stored with a minus
    spread: int  # with an imatrix, the mean square counts so many times beside x**2
    plain: float  # without one, so many times
    smallest: float  # a run without a weight so large is zero
    again: str  # groups rounded once more, see fitter
    clear: bool  # a block whose scales are all zero is zero bytes
    first: Callable[[int], Any] | None = None  # makes the function for the first scale


class Found(NamedTuple):
    """Blocks [rows, n] before their bits are packed."""

    d: NDArray[np.float32]  # [rows, n] a 31st of the largest scale
    scale: NDArray[np.uint8]  # [rows, n, runs]
    row: NDArray[np.int16]  # [rows, n, groups]
    minus: NDArray[np.uint8]  # [rows, n, 32] a bit a weight, the first one's lowest
    live: NDArray[np.bool_]  # [rows, n, runs] not taken for zero


def search(how: Search, values: NDArray[np.float32], imatrix: NDArray[np.float32] | None) -> Found:
    """Rows of floats [rows, K] to rows of the code book, signs and scales."""
    book, blocks = grid(how.book), (values.shape[0], values.shape[1] // BLOCK)
    found = Found(
        np.zeros(blocks, np.float32),
        np.zeros((*blocks, BLOCK // how.run), np.uint8),
        np.zeros((*blocks, BLOCK // book.shape[1]), np.int16),
        np.zeros((*blocks, BLOCK // 8), np.uint8),
        np.zeros((*blocks, BLOCK // how.run), np.bool_),
    )
    top = np.float32(2 * len(np.unique(book)) - 1)
    steps = np.arange(-how.tries, how.tries + 1).astype(np.float32) * np.float32(how.step)
    scratch = candidates(how.run // book.shape[1], len(steps))
    _kernel(how)(values, imatrix, top + steps, neighbours(how.book, how.wanted), scratch, found)
    return found


@cache
def _kernel(how: Search) -> Any:
    book = grid(how.book)
    size, levels, run = book.shape[1], len(np.unique(book)), how.run
    groups, runs, clear = run // size, BLOCK // run, how.clear
    spread, plain, smallest = np.float32(how.spread), np.float32(how.plain), np.float32(how.smallest)
    even_signs = how.even_signs
    fit = fitter(size, levels, run, 2 * how.tries + 1, how.again)
    first = (how.first or _by_largest)(levels)

    @inline
    def weigh(part, x, imatrix, at, squares):
        """Importance of the weights, and its square root."""
        if imatrix is None:
            for i in range(run):
                part.weight[i] = x[i] * x[i]
                if plain:
                    part.weight[i] = plain * (spread * squares / np.float32(BLOCK)) + x[i] * x[i]
        else:
            for i in range(run):
                variance = spread * squares / np.float32(BLOCK)
                part.weight[i] = imatrix[at + i] * np.sqrt(variance + x[i] * x[i])
        for i in range(run):
            part.root[i] = np.sqrt(part.weight[i])

    @inline
    def split(part, x, minus):
        """Magnitudes and signs; where needed, the least important of eight gets the wrong sign."""
        for k in range(run // 8):
            bits, odd = 0, 0
            for i in range(8 * k, 8 * k + 8):
                part.x[i] = x[i] if x[i] >= ZERO else -x[i]
                bits |= np.int64(x[i] < ZERO) << i - 8 * k
                odd ^= np.int64(x[i] < ZERO)
            if even_signs and odd:
                at, least = 8 * k, part.weight[8 * k] * x[8 * k] * x[8 * k]
                for i in range(8 * k + 1, 8 * k + 8):
                    cost = part.weight[i] * x[i] * x[i]
                    if cost < least:
                        at, least = i, cost
                part.x[at] = -part.x[at]
                bits ^= 1 << at - 8 * k
            minus[k] = bits

    @inline
    def encode_run(part, x, imatrix, at, squares, numerators, table, scratch, minus):
        """The scale of a run, or a negative one where it is skipped as zero."""
        weigh(part, x, imatrix, at, squares)
        split(part, x, minus)
        largest = part.x[0]
        for i in range(1, run):
            largest = max(largest, part.x[i])
        if largest < smallest:
            minus[:] = 0
            return ZERO, False
        divisor, scale = first(part, largest)
        if divisor <= ZERO:
            minus[:] = 0
            return ZERO, False
        scale = fit(part, numerators, divisor, scale, table, scratch)
        if scale < ZERO:
            scale = -scale
            for k in range(run // 8):
                minus[k] ^= 255
        return scale, True

    @jit
    def kernel(values, imatrix, numerators, table, scratch, found):
        x, weight, root = np.empty(run, np.float32), np.empty(run, np.float32), np.empty(run, np.float32)
        scales = np.empty(runs, np.float32)
        for r in range(found.d.shape[0]):
            for b in range(found.d.shape[1]):
                squares, most = ZERO, ZERO
                for i in range(b * BLOCK, (b + 1) * BLOCK):
                    squares += values[r, i] * values[r, i]
                for i in range(runs):
                    at = b * BLOCK + i * run
                    part = Run(x, weight, root, found.row[r, b, i * groups : (i + 1) * groups])
                    minus = found.minus[r, b, i * (run // 8) : (i + 1) * (run // 8)]
                    scales[i], found.live[r, b, i] = encode_run(
                        part, values[r, at : at + run], imatrix, at, squares, numerators, table, scratch, minus
                    )
                    most = max(most, scales[i])
                if most == ZERO:
                    if clear:
                        found.row[r, b] = 0
                        found.minus[r, b] = 0
                    continue
                found.d[r, b] = most / np.float32(31)
                inverse = ONE / found.d[r, b]
                for i in range(runs):
                    level = nearest(HALF * (inverse * scales[i] - ONE))
                    found.scale[r, b, i] = max(np.int32(0), min(np.int32(15), level))

    return kernel


def _by_largest(levels: int) -> Any:
    top = np.float32(2 * levels - 1)

    @inline
    def first(part, largest):
        return largest, largest / top

    return first
