"""One result of ``ggmlq check`` against one arithmetic: each element, its expected value and error limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray

Wide = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Where an arithmetic gives no bound (sums in halves, order unknown): six times an NMSE of 1e-4. Such sums are
# steps of the smallest half apart, and beyond the largest one infinite, or no number.
LOOSE = 0.06
LARGEST_HALF, SMALLEST_HALF = 65504.0, 2.0**-24
PARTIAL = 4  # a partial sum may be so many times what the whole is expected to be


@dataclass(frozen=True)
class Elements:
    """The elements [M, N] of one result, each with its expected value and its limit."""

    y: Wide
    expected: Wide
    limit: Wide
    loose: bool  # the limit is no bound of this arithmetic
    energy: Wide

    @property
    def out(self) -> Mask:
        """Elements that are out of bound, or finite where they should not be, or the reverse."""
        with np.errstate(invalid="ignore"):
            inside = (np.abs(self.y - self.expected) <= self.limit) | np.isposinf(self.limit)
        finite = np.isfinite(self.expected) & ~np.isnan(self.limit)
        mask: Mask = np.where(finite, ~inside, np.isfinite(self.y))
        return mask

    @property
    def excess(self) -> Wide:
        """The error in units of its limit; infinite where an element is out in another way."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.abs(self.y - self.expected) / self.limit
        ratio = np.where(np.isnan(ratio), 0.0, ratio)
        return np.where(self.out & ~(ratio > 1), np.inf, np.where(self.out, ratio, np.minimum(ratio, 1.0)))

    @property
    def distance(self) -> float:
        """The distance from the arithmetic, in the worst row of weights."""
        return distance(self.y, self.expected, self.energy)


def measure(y: NDArray[Any], x: Any, q: QuantArray, arithmetic: str, energy: Wide | None = None) -> Elements:
    """Judge y [M, N] of x [M, K] and q [N, K]; an UnsupportedError where no program multiplies so."""
    expected = reference.linear(x, q, arithmetic)
    limit = reference.bound(x, q, arithmetic)
    energy = energy_of(x, q) if energy is None else energy
    loose = bool(np.isposinf(limit).any())
    if loose:
        limit = np.where(np.isposinf(limit), _loose_limit(expected, energy, q, arithmetic), limit)
    return Elements(np.asarray(y, np.float64), expected, limit, loose, energy)


def _loose_limit(expected: Wide, energy: Wide, q: QuantArray, arithmetic: str) -> Wide:
    """The limit where an arithmetic gives no bound; infinite where sums of halves may overflow."""
    typical = np.sqrt(energy)
    limit = LOOSE * typical
    if reference.rule(q.format, arithmetic).floats != "f16":
        return limit
    overflows = np.abs(expected) + PARTIAL * typical > LARGEST_HALF
    return np.where(overflows, np.inf, limit + np.sqrt(q.shape[1]) * SMALLEST_HALF)


def energy_of(x: NDArray[Any], q: QuantArray) -> Wide:
    """The expected square of a product of such lengths with random signs: ‖x‖²·‖w‖²/K, [M, N]."""
    w = q.dequantize(np.float64)
    squares = np.sum(np.asarray(x, np.float64) ** 2, axis=1)
    return np.asarray(squares[:, None] * np.sum(w**2, axis=1) / q.shape[1])


def distance(y: NDArray[Any], expected: Wide, energy: Wide) -> float:
    """The distance in the worst row of weights, over elements that are finite in both; NaN without any."""
    finite = np.isfinite(y) & np.isfinite(expected)
    if not finite.any():
        return math.nan
    difference = np.subtract(y, expected, where=finite, out=np.zeros_like(expected))
    error = np.sum(difference**2, axis=0)
    total = np.sum(np.where(finite, energy, 0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(error == 0, 0.0, error / total).max())
