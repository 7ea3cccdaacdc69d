"""Weights in the searches of the IQ encoders: of single weights, runs of them, whole blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.jit import inline

BLOCK = 256
INFINITY = np.float32(np.inf)


@inline
def sum_of_squares(x: Any, first: Any) -> Any:
    """The sum of squares of the block that begins there, in order."""
    total = np.float32(0)
    for i in range(first, first + BLOCK):
        total += x[i] * x[i]
    return total


@inline
def largest_scale(scales: Any, squares: Any) -> Any:
    """The largest scale of a block; infinite where the sums have overflowed.

    Ggml ends the process there, or writes zeros; an infinite d tells the user.
    """
    most = np.float32(0) if squares + squares < INFINITY else INFINITY
    for scale in scales:
        most = max(most, scale) if scale == scale else INFINITY  # noqa: PLR0124 (NaN)
    return most


@cache
def weigher(run: int, times: int, plain: float) -> Any:
    """``weigh(x, imatrix, first, squares, weight)`` for a run of x from ``first`` on.

    With an imatrix, the mean square of the block counts so many ``times`` beside x**2, and the
    root of that is weighed; without one, ``plain`` times as much of it counts.
    """
    factor, share = np.float32(times), np.float32(plain)

    @inline
    def weigh(x: Any, imatrix: Any, first: Any, squares: Any, weight: Any) -> None:
        variance = factor * squares / np.float32(BLOCK)
        for i in range(run):
            square = x[first + i] * x[first + i]
            if imatrix is not None:
                weight[i] = imatrix[first + i] * np.sqrt(variance + square)
            elif plain:
                weight[i] = share * variance + square
            else:
                weight[i] = square

    return weigh
