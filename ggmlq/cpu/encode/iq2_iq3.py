"""The search that the encoders of IQ2 and IQ3 share: rows of a code book, signs and scales.

For every run of weights under one scale, ggml tries a dozen or more scales. Each rounds every
weight to a level, takes the row of the code book nearest to each group of levels, and fits the
scale to these rows; the best fit is then refined once. A format's file says what it does its own
way and packs the bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from ...formats._grids import grid
from ...formats._search import fit_positive
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
from .program import LANES, put
from .tiles import compiled


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


@cache
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


# --- the fit of a run: its scale, and the rows of the code book that go with it -------------------
#
# The candidates for the scale lie side by side, one lane each. Every sum stands in ggml's order, so that
# the same candidate wins to the last bit.

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


class Candidates(NamedTuple):
    """Scratch memory: the levels, rows and sums of each candidate for the scale."""

    inverse: NDArray[np.float32]  # [lanes] one over the scale
    point: NDArray[np.int32]  # [groups, lanes] levels as rounded
    place: NDArray[np.int32]  # [groups, lanes] of the nearest row
    codes: NDArray[np.uint16]  # [groups, lanes] its levels
    xq: NDArray[np.float32]  # [lanes] weighted sum of x * q
    qq: NDArray[np.float32]  # [lanes] weighted sum of q * q


def candidates(groups: int, tries: int) -> Candidates:
    """Scratch memory for ``tries`` candidates; unused lanes hold zeros."""
    lanes = whole(tries)
    return Candidates(
        np.zeros(lanes, np.float32),
        np.zeros((groups, lanes), np.int32),
        np.zeros((groups, lanes), np.int32),
        np.zeros((groups, lanes), np.uint16),
        np.zeros(lanes, np.float32),
        np.zeros(lanes, np.float32),
    )


def whole(tries: int) -> int:
    """The number of lanes for ``tries`` candidates, a multiple of eight."""
    return -(-tries // 8) * 8


@cache
def fitter(size: int, levels: int, run: int, tries: int, again: str) -> Any:
    """``fit(x, weight, root, row, numerators, divisor, scale, table, candidates)``: the scale.

    Each group of ``size`` weights gets a row. ``again`` says which groups are rounded once more
    with the best scale: those "off the book", "all if one is off" it, or "all".
    """
    groups, lanes = run // size, whole(tries)
    everything, only_off = again == "all", again == "off the book"
    nearest_row, level = finder(size, levels, True), level_of(levels, True)

    @inline
    def point_of(x: Any, k: Any, inverse: Any) -> Any:
        """The number of the levels that the weights of group k are rounded to."""
        point = np.int32(0)
        for i in range(size):
            rounded = nearest(HALF * (inverse * x[k * size + size - 1 - i] - ONE))
            point = np.int32(point * levels + max(np.int32(0), min(np.int32(levels - 1), rounded)))
        return point

    @inline
    def add(x: Any, weight: Any, k: Any, codes: Any, xq: Any, qq: Any) -> Any:
        """The sums of a fit, with group k added."""
        for i in range(k * size, k * size + size):
            q = level(codes, i - k * size, ZERO)
            xq += weight[i] * x[i] * q
            qq += weight[i] * q * q
        return xq, qq

    @inline
    def try_all(x: Any, weight: Any, root: Any, numerators: Any, divisor: Any, table: Any, c: Any) -> None:
        for lane in range(tries):
            c.inverse[lane] = numerators[lane] / divisor
        c.xq[:] = ZERO
        c.qq[:] = ZERO
        for k in range(groups):
            for lane in range(lanes):
                c.point[k, lane] = point_of(x, k, c.inverse[lane])
            for lane in range(tries):
                scale = ONE / c.inverse[lane]
                place = nearest_row(x, root, k * size, scale, ZERO, c.point[k, lane], table)
                c.place[k, lane] = place
                c.codes[k, lane] = codes_at(table, place)
            for lane in range(lanes):
                codes = np.int32(c.codes[k, lane])
                c.xq[lane], c.qq[lane] = add(x, weight, k, codes, c.xq[lane], c.qq[lane])

    @inline
    def refine(x: Any, weight: Any, root: Any, row: Any, scale: Any, winner: Any, table: Any, c: Any) -> Any:
        """Round groups once more with the best scale, and fit it to all rows."""
        xq, qq, inverse = ZERO, ZERO, ONE / scale
        for k in range(groups):
            if only_off and table.exact[c.point[k, winner]]:
                place = np.int64(c.place[k, winner])
            else:
                place = nearest_row(x, root, k * size, scale, ZERO, point_of(x, k, inverse), table)
            row[k] = row_at(table, place)
            codes = codes_at(table, place)
            xq, qq = add(x, weight, k, codes, xq, qq)
        return xq / qq if qq > ZERO else scale

    @inline
    def fit(
        x: Any,
        weight: Any,
        root: Any,
        row: Any,
        numerators: Any,
        divisor: Any,
        scale: Any,
        table: Any,
        c: Any,
    ) -> Any:
        try_all(x, weight, root, numerators, divisor, table, c)
        best, winner = ZERO, -1
        for lane in range(tries):
            xq, qq = c.xq[lane], c.qq[lane]
            if qq > ZERO and xq * xq > best * qq:
                scale = xq / qq
                best, winner = scale * xq, lane
        off = everything or (winner < 0 and not only_off)
        for k in range(groups):
            row[k] = row_at(table, c.place[k, winner]) if winner >= 0 else np.int16(0)
            off = off or (winner >= 0 and not table.exact[c.point[k, winner]])
        return refine(x, weight, root, row, scale, winner, table, c) if off and scale > ZERO else scale

    return fit


# --- iq2_xxs --------------------------------------------------------------------------------------

fit_codes = compiled(fit_positive)  # type: ignore[arg-type]


@inline
def _by_codes(runs_of: Any, top: Any) -> None:
    """Write the first scale of each run, by a fit with codes 0 … 3; a run is a lane, a block half of them."""
    runs, run = runs_of.x.shape
    x, weight = np.zeros((run, LANES), np.float32), np.zeros((run, LANES), np.float32)
    codes, scales = np.empty((run, LANES), np.uint8), np.empty((1, LANES), np.float32)
    for i in range(runs):
        for j in range(run):
            x[j, i], weight[j, i] = runs_of.x[i, j], runs_of.weight[i, j]
    put(scales, 0, fit_codes(x, weight, codes, run, 4))
    for i in range(runs):
        runs_of.scale[i] = scales[0, i]
        if runs_of.divisor[i] > np.float32(0):
            runs_of.divisor[i] = scales[0, i] * np.float32(3)


IQ2_XXS = Search(
    book="iq2_xxs", distances=2, run=32, tries=6, step=0.1, even_signs=True, times=1, plain=0,
    smallest=1e-15, again="all", clear=True, stretch=1, first=_by_codes,
)  # fmt: skip


def encode_iq2_xxs(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq2_xxs: the search tries 13 scales for a run of 32; each eight has an even count of minus signs.

    The first scale of a run comes from a fit with codes 0 … 3 that knows no code book.
    """
    result = searcher(IQ2_XXS)(values, imatrix)
    out = blocks.view(iq2_xxs.DTYPE)
    signs = result.minus.reshape(*out.shape, 8, 4).astype(np.uint32) & 127
    words = np.empty((*out.shape, 8, 2), np.uint32)
    words[..., 0] = result.row.astype(np.uint8).view(np.uint32)
    words[..., 1] = (
        np.bitwise_or.reduce(signs << iq2_xxs.SHIFTS, axis=-1) | result.scale.astype(np.uint32) << 28
    )
    out["d"] = result.d
    out["qs"] = words.reshape(*out.shape, 16).view(np.uint16)


# --- iq2_xs ---------------------------------------------------------------------------------------

IQ2_XS = Search(
    book="iq2_xs", distances=2, run=16, tries=9, step=0.1, even_signs=True, times=1, plain=0,
    smallest=1e-15, again="off the book", clear=True, stretch=1,
)  # fmt: skip


def encode_iq2_xs(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq2_xs: the search tries 19 scales for a run of 16; each eight has an even count of minus signs."""
    result = searcher(IQ2_XS)(values, imatrix)
    out = blocks.view(iq2_xs.DTYPE)
    out["d"] = result.d
    out["qs"] = result.row | result.minus.astype(np.uint16) << 9
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4


# --- iq2_s ----------------------------------------------------------------------------------------

IQ2_S = Search(
    book="iq2_s", distances=1, run=16, tries=9, step=0.1, even_signs=False, times=2, plain=0.25,
    smallest=1e-8, again="off the book", clear=False, stretch=0.9875,
)  # fmt: skip


def encode_iq2_s(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq2_s: the search tries 19 scales for each run of 16 weights; signs are free."""
    result = searcher(IQ2_S)(values, imatrix)
    out = blocks.view(iq2_s.DTYPE)
    high = (result.row >> 8).astype(np.uint8).reshape(*out.shape, 8, 4)
    out["d"] = result.d
    out["qs"][..., :32] = result.row
    out["qs"][..., 32:] = result.minus
    out["qh"] = np.bitwise_or.reduce(high << iq2_s.SHIFTS, axis=-1)
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4


# --- iq3_xxs --------------------------------------------------------------------------------------

IQ3_XXS = Search(
    book="iq3_xxs", distances=2, run=32, tries=15, step=0.2, even_signs=True, times=2, plain=0,
    smallest=1e-8, again="off the book", clear=True, stretch=1.0125,
)  # fmt: skip
SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def encode_iq3_xxs(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq3_xxs: the search tries 31 scales for a run of 32; each eight has an even count of minus signs."""
    result = searcher(IQ3_XXS)(values, imatrix)
    out = blocks.view(iq3_xxs.DTYPE)
    out["d"] = result.d
    signs = result.minus.reshape(*out.shape, 8, 4).astype(np.uint32) & 127
    words = (signs << SIGN_SHIFTS).sum(axis=-1, dtype=np.uint32) | result.scale.astype(np.uint32) << 28
    out["qs"][..., :64] = result.row
    out["qs"][..., 64:] = words.view(np.uint8)


# --- iq3_s ----------------------------------------------------------------------------------------

IQ3_S = Search(
    book="iq3_s", distances=3, run=32, tries=9, step=0.2, even_signs=False, times=2, plain=0,
    smallest=2.0**-149, again="all if one is off", clear=False, stretch=1.033,
)  # fmt: skip


def encode_iq3_s(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Iq3_s: the search tries 19 scales for each run of 32; signs are free.

    A run of zeros misplaces what follows it: ggml writes the rows and the signs of the next run where
    those of the zeros belong, while ninth bits and scales stay in their places. Such a block does not
    decode to what went in. The bytes here are ggml's all the same, with a warning.
    """
    result = searcher(IQ3_S)(values, imatrix)
    out = blocks.view(iq3_s.DTYPE)
    places = np.argsort(~result.live, axis=-1, kind="stable")[..., None]
    if (places[..., 0] != np.arange(8)).any():
        warnings.warn(
            "quantize(x, 'iq3_s'): x has runs of 32 zeros before other values of their block; ggml's encoder "
            "misplaces what follows them, and the bytes here are ggml's: these blocks will not decode to "
            "what went in; take 'iq3_xxs' or 'q3_K' for x",
            RuntimeWarning,
            stacklevel=2,
        )
    rows = np.take_along_axis(result.row.reshape(*out.shape, 8, 8), places, axis=-2)
    minus = np.take_along_axis(result.minus.reshape(*out.shape, 8, 4), places, axis=-2)
    out["d"] = result.d
    out["qs"] = rows.reshape(*out.shape, 64)
    out["qh"] = np.packbits(result.row >> 8, axis=-1, bitorder="little")
    out["signs"] = minus.reshape(*out.shape, 32)
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4
