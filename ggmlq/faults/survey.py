"""The doctor's survey: all of y compared with the best right kernel, some rows and columns at a time.

The best right kernel is the one whose result explains most of y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..base.indices import evenly_spaced
from .numbers import Index, Mask, Wide

ROWS, COLUMNS = 32, 64  # of the sample that is examined closely; fewer where K is long
WORK = 1 << 22  # elements of activations and weights of the sample


@dataclass(frozen=True, eq=False)
class Survey:
    """All of y [M, N] beside the best right result; each kind of product adds to it."""

    y: Wide
    prediction: Wide  # of the best right kernel
    size: Wide  # the typical size of each element
    limit: Wide  # how far a right kernel may be
    bad: Mask  # elements that no right kernel explains

    @property
    def alternatives(self) -> list[Wide]:
        """Results of other right kernels, best first."""
        return []

    def fitting(self, axis: int) -> list[Wide]:
        """Results of right kernels whose columns (axis 1) or rows (axis 0) appear in y, at any place."""
        return []


Part = tuple[Wide, Wide, Wide, Mask]  # prediction, size, limit, wrong elements


def by_slabs(shape: tuple[int, ...], tall: int, wide: int, judge: Callable[[Index, Index], Part]) -> Part:
    """The results of ``judge`` for all of y, called for some rows and columns at a time to save memory."""
    prediction, size, limit, bad = *(np.empty(shape) for _ in range(3)), np.empty(shape, np.bool_)
    for rows in np.split(np.arange(shape[0]), range(tall, shape[0], tall)):
        for columns in np.split(np.arange(shape[1]), range(wide, shape[1], wide)):
            at = np.ix_(rows, columns)
            prediction[at], size[at], limit[at], bad[at] = judge(rows, columns)
    return prediction, size, limit, bad


def sampled(shape: tuple[int, ...], k: int, bad: Mask | None) -> tuple[Index, Index]:
    """Rows and columns to examine closely: all of a small y, else both ends, some between, and bad ones."""
    (m, n), k = shape, max(k, 1)
    none = np.zeros((m, n), np.bool_) if bad is None else bad
    rows = _some(m, min(ROWS, max(8, WORK // (k * 32))), np.flatnonzero(none.any(axis=1)))
    columns = _some(n, min(COLUMNS, max(16, WORK // (k * 16))), np.flatnonzero(none.any(axis=0)))
    return rows, columns


def _some(n: int, most: int, places: Index) -> Index:
    if n <= most:
        return np.arange(n)
    ends = [np.arange(most // 8), np.arange(n - most // 8, n)]
    if len(places):
        ends.append(places[evenly_spaced(len(places), most // 2)])
    chosen = np.unique(np.concatenate(ends))
    rest = np.setdiff1d(evenly_spaced(n, most), chosen)
    room = min(most - len(chosen), len(rest))
    if room > 0:
        chosen = np.union1d(chosen, rest[evenly_spaced(len(rest), room)])
    return chosen


def typical(x: Wide, w: Wide) -> Wide:
    """The size of each element of x @ w.T, were its terms of random sign."""
    norms = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(w, axis=1))
    size: Wide = norms / np.sqrt(max(x.shape[1], 1))
    return size
