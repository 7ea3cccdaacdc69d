"""Sigmoid and tanh of a GRU in integers: a table with one entry for every code of the input.

    direct        each entry is the function itself, rounded: within half a code, and the default
    pwl16         16 lines: what hardware without memory for a table computes
    interpolated  1024 lines over knots in a grid of a power of two: within a code of 16 bits

Whichever way it is made, a program only uses the finished table: for an input code q its entry
``q - least code`` is the code of the output. So programs agree on the codes without knowing how a line is
rounded, and the three ways differ in nothing but accuracy. Functions are evaluated once, in float64 on the
host.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .qformat import QFormat, half_away
from .shift import shifted_array

Real = NDArray[np.float64]
TABLES = ("direct", "pwl16", "interpolated")
SEGMENTS, SAMPLES, FITTED = 16, 1000, 100
INTERVALS, FRACTION = 1024, 8  # bits of a knot below those of the output


def sigmoid(x: Any) -> Real:
    """1 / (1 + e^-x), computed without overflow."""
    small = np.exp(-np.abs(np.asarray(x, np.float64)))
    values: Real = np.where(np.asarray(x) < 0, small, 1.0) / (1 + small)
    return values


def tanh(x: Any) -> Real:
    """The hyperbolic tangent in float64."""
    values: Real = np.tanh(np.asarray(x, np.float64))
    return values


FUNCTIONS = {"sigmoid": (sigmoid, 8.0, 12.0), "tanh": (tanh, 4.0, 6.0)}  # where pwl16 and interpolated end


def flat_beyond(function: str, target: QFormat) -> float:
    """The input beyond which ``"sigmoid"`` or ``"tanh"`` stays within half a code of its limits."""
    halves = float(np.ldexp(1.0, max(target.exponent, 1) + 1))
    return float(np.log(halves - 1) if function == "sigmoid" else np.log(2 * halves - 1) / 2)


def table_of(function: str, how: str, source: QFormat, target: QFormat) -> NDArray[Any]:
    """The table of ``"sigmoid"`` or ``"tanh"`` from codes of one format to codes of another.

    >>> from ggmlq.fixed import QFormat
    >>> table_of("sigmoid", "direct", QFormat(4, 0, 8, True), QFormat(8, 0, 8, False))[[0, 128, 255]]
    array([  0, 128, 255], dtype=uint8)
    """
    exact, short, long = FUNCTIONS[function]
    codes = np.arange(source.low, source.high + 1, dtype=np.int64)
    if how == "direct":
        codes_out = _rounded(exact, codes, source, target)
    elif how == "pwl16":
        codes_out = _lines(exact, codes, source, target, short)
    else:
        codes_out = _interpolated(exact, codes, source, target, long)
    values: NDArray[Any] = np.clip(codes_out + target.zero, target.low, target.high).astype(target.dtype)
    return values


def _real(codes: Any, source: QFormat) -> Real:
    values: Real = np.ldexp(np.asarray(codes, np.float64) - source.zero, -source.exponent)
    return values


def _rounded(exact: Callable[[Any], Real], codes: Any, source: QFormat, target: QFormat) -> NDArray[np.int64]:
    values: NDArray[np.int64] = half_away(np.ldexp(exact(_real(codes, source)), target.exponent)).astype(
        np.int64
    )
    return values


# --- sixteen lines ------------------------------------------------------------------------------


def _lines(
    exact: Callable[[Any], Real], codes: Any, source: QFormat, target: QFormat, end: float
) -> NDArray[np.int64]:
    low, high = (float(np.clip(_real(code, source), -end, end)) for code in (source.low, source.high))
    knots = _knots(low, high)
    slopes, heights = np.empty(SEGMENTS), np.empty(SEGMENTS)
    for i, (left, right) in enumerate(pairwise(knots)):
        at = np.linspace(left, right, FITTED)
        slopes[i], heights[i] = _fitted(at, exact(at))
    unit = target.exponent - source.exponent  # codes of the output a code of the input
    most = (1 << (7 if target.bits <= 8 else 15)) - 1
    steep = np.ldexp(slopes, unit)
    n = int(np.floor(np.log2(most / max(float(np.abs(steep).max()), 2.0**-40))))
    whole = half_away(np.ldexp(steep, n)).astype(np.int64)
    added = half_away(np.ldexp(heights, target.exponent)).astype(np.int64)
    ends = half_away(np.ldexp(knots[1:-1], source.exponent)).astype(np.int64) + source.zero
    which = np.searchsorted(ends, codes, "right")  # the first line whose end lies above the code
    values: NDArray[np.int64] = shifted_array(whole[which] * (codes - source.zero), n) + added[which]
    return values


def _knots(low: float, high: float) -> Real:
    """Ends of lines, denser where the functions bend."""
    x = np.linspace(low, high, SAMPLES)
    slope = sigmoid(x) * (1 - sigmoid(x))
    dense = np.where(np.abs(x) < 2, 5 * (1 - np.abs(x) / 2) + 1, 1 + slope / 2)
    share = np.cumsum(dense) / dense.sum()
    inner = x[np.searchsorted(share, np.arange(1, SEGMENTS) / SEGMENTS)]
    return np.array([low, *inner, high])


def _fitted(x: Real, y: Real) -> tuple[float, float]:
    """Slope and height at 0 of the line with the least squared error."""
    mean, spread = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = float(((x - mean) * y).sum() / spread) if spread else 0.0
    return slope, float(y.mean() - slope * mean)


# --- a grid -------------------------------------------------------------------------------------


def _interpolated(
    exact: Callable[[Any], Real], codes: Any, source: QFormat, target: QFormat, end: float
) -> NDArray[np.int64]:
    reach = [
        source.zero + int(np.clip(np.ldexp(side, source.exponent), -(2**40), 2**40)) for side in (-end, end)
    ]
    first, last = (int(np.clip(code, source.low, source.high)) for code in reach)
    wide = max(0, (max(last - first, 1) - 1).bit_length() - (INTERVALS.bit_length() - 1))  # log2 of a step
    knots = first + (np.arange(INTERVALS + 2, dtype=np.int64) << wide)
    heights = np.ldexp(exact(_real(knots, source)), target.exponent + FRACTION)
    at = np.clip(codes, first, last) - first
    which, rest = at >> wide, at & ((1 << wide) - 1)
    whole = half_away(heights).astype(np.int64)
    line = (whole[which] << wide) + (whole[which + 1] - whole[which]) * rest
    return shifted_array(line, wide + FRACTION)
