"""Statistics of a tensor for calibration, and the format that each observer makes of it.

    minmax      the least and the largest value ever
    ema         for tensors that are followed step by step (x and h of a GRU): least and largest of each step,
                averaged with 0.9 for the average so far and 0.1 for the step; for all other tensors minmax
    percentile  the range that 99.99 % of the values lie in; the rest is cut off evenly on both sides
    sqnr        the format with the least squared error, where errors of clipped values count three times

Everything is kept at once, so that one calibration serves every observer: extremes, the average, and a
histogram whose bins double in width when a value falls outside, so that nothing has to be known before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .qformat import QFormat, format_of

OBSERVERS = ("ema", "minmax", "sqnr", "percentile")
KEEP = 0.9  # of the average, a step
BINS = 4096  # over both signs
KEPT = 0.9999  # by "percentile"
FINER = 5  # scales that "sqnr" tries, each half the one before
OFFSETS = 21  # ranges of one width, moved along
CLIPPED = 3.0  # what an error beyond the ends costs


class Observed:
    """The statistics of one tensor during calibration."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.average: tuple[float, float] | None = None
        self.count = 0
        self._squares = self._slopes = 0.0  # sums
        self._reach = 0.0  # the histogram is of -reach … reach, a power of two
        self._bins = np.zeros(BINS, np.int64)

    def see(self, values: NDArray[np.float64], slopes: Any = 0.0) -> None:
        """Add finite values of any shape, and the slopes of a result by them, to the statistics."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._widen(max(-low, high))
        self.count += values.size
        with np.errstate(over="ignore", invalid="ignore"):  # beyond 1e154; formats refuse such ranges
            self._squares += float(np.square(values).sum())
            self._slopes += float(np.mean(np.square(slopes))) * values.size
        if self._reach:
            self._bins += np.bincount(self._bin(values.reshape(-1)), minlength=BINS)

    def step(self, values: NDArray[np.float64]) -> None:
        """Add the extremes of one step in time to the average."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if self.average is not None:
            low = KEEP * self.average[0] + (1 - KEEP) * low
            high = KEEP * self.average[1] + (1 - KEEP) * high
        self.average = low, high

    def _widen(self, most: float) -> None:
        """Let the histogram reach ``most``; bins are added up in pairs, around the middle."""
        if most <= self._reach or most < 1e-300:
            return
        reach = float(np.ldexp(1.0, int(np.frexp(most)[1])))
        if self._reach:
            fold = min(int(np.log2(reach / self._reach)), BINS.bit_length() - 2)
            half = BINS // 2 >> fold
            narrow = self._bins.reshape(2 * half, 1 << fold).sum(1)
            self._bins = np.zeros(BINS, np.int64)
            self._bins[BINS // 2 - half : BINS // 2 + half] = narrow
        else:
            self._bins[BINS // 2] = self.count  # so far all were 0
        self._reach = reach

    @property
    def mean_square(self) -> float:
        """The mean of the squares of all values."""
        return self._squares / self.count if self.count else 0.0

    @property
    def mean_square_slope(self) -> float:
        """The mean of the squares of all slopes."""
        return self._slopes / self.count if self.count else 0.0

    # --- formats ------------------------------------------------------------------------

    def format(self, observer: str, bits: int, signed: bool, symmetric: bool, least: float = 0.0) -> QFormat:
        """The format that an observer chooses; its range is at least ``least`` wide."""
        low, high = self.range(observer)
        if high - low < least:
            middle = (low + high) / 2
            low, high = middle - least / 2, middle + least / 2
        covers = format_of(low, high, bits, signed, symmetric)
        return self._least_error(covers, symmetric) if observer == "sqnr" and self._reach else covers

    def range(self, observer: str) -> tuple[float, float]:
        """The range (least, largest) that an observer makes a format of."""
        if not self.count:
            return 0.0, 0.0
        if observer == "ema" and self.average is not None:
            return self.average
        if observer == "percentile" and self._reach:
            return self._percentile()
        return self.low, self.high

    def within(self, low: float, high: float) -> Observed:
        """The same statistics of values that end at ``low`` and ``high``, where 0.0 lies between."""
        ends = Observed()
        ends.low, ends.high = (float(np.clip(end, low, high)) for end in (self.low, self.high))
        ends.count, ends._reach = self.count, self._reach
        if self._reach:
            where = np.clip(np.arange(BINS), *(self._bin(np.array(end)) for end in (low, high)))
            ends._bins = np.bincount(where, self._bins, BINS).astype(np.int64)
        return ends

    def _bin(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """The bins of values."""
        where = np.floor((values / self._reach + 1) * (BINS // 2))
        return np.clip(where, 0, BINS - 1).astype(np.int64)

    def _percentile(self) -> tuple[float, float]:
        edges = np.linspace(-self._reach, self._reach, BINS + 1)
        share = np.cumsum(self._bins) / self.count
        out = (1 - KEPT) / 2
        first = int(np.searchsorted(share, out, "right"))
        last = int(np.searchsorted(share, 1 - out, "left"))
        return max(self.low, float(edges[first])), min(self.high, float(edges[min(last, BINS - 1) + 1]))

    def _least_error(self, covers: QFormat, symmetric: bool) -> QFormat:
        """The format of least error among those finer than the one that covers everything.

        Scales are powers of two, so those are what is tried: nothing has to be rounded afterwards.
        """
        occupied = self._bins > 0
        width = 2 * self._reach / BINS
        values, weights = (np.flatnonzero(occupied) - BINS // 2 + 0.5) * width, self._bins[occupied]
        best, least = covers, np.inf
        if not np.isfinite(self._squares):
            return covers  # so are errors; formats of such ranges are refused
        for exponent in range(covers.exponent, covers.exponent + FINER):
            for zero in self._zeros(covers, exponent, symmetric):
                tried = covers._replace(exponent=exponent, zero=zero)
                error = _error(tried, values, weights, width)
                if error < least:
                    best, least = tried, error
        return best

    def _zeros(self, covers: QFormat, exponent: int, symmetric: bool) -> list[int]:
        """Zero points from a range that begins at the least value to one that ends at the largest."""
        if symmetric:
            return [0]
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        first = covers.low - int(np.floor(np.ldexp(low, exponent)))
        last = covers.high - int(np.ceil(np.ldexp(high, exponent)))
        inside = np.clip(np.linspace(first, last, OFFSETS), covers.low, covers.high)
        return sorted({round(float(zero)) for zero in inside}, key=lambda zero: abs(zero - first))


def _error(tried: QFormat, values: Any, weights: Any, width: float) -> float:
    """Squared error of a histogram in a format; a bin holds values all over its width."""
    codes = tried.unclipped(values)
    clipped = np.clip(codes, tried.low, tried.high)
    errors = np.ldexp(clipped - tried.zero, -tried.exponent) - values
    step = min(float(tried.scale), width)
    costs = np.where(codes == clipped, np.maximum(errors**2, step**2 / 12), CLIPPED * errors**2)
    return float(costs @ weights)
