"""The importance of each weight in the searches of the IQ encoders, and the largest scale of a block."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.jit import inline

BLOCK = 256
INFINITY = np.float32(np.inf)


@inline
def sum_of_squares(x: Any, first: Any) -> Any:
    """The sum of squares of the block that begins at ``first``, added in order."""
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
    """``weigh(x, imatrix, first, squares, weight)``: write the importance of a run of x from ``first`` on.

    With v = ``times`` · the mean square of the block, it is imatrix · sqrt(v + x**2), or ``plain`` · v + x**2
    without an imatrix.
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
