"""The column of a right result nearest to a column of y, and their distance."""

from __future__ import annotations

import numpy as np

from .numbers import Index, Wide


def sources(y: Wide, best: Wide, size: Wide) -> Index:
    """For each column of y [M, W] the column of best [M, N] that is nearest."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scale = np.maximum(size.max(axis=1), 1e-300)[:, None]
        a, b = np.nan_to_num(y / scale), np.nan_to_num(best / scale)
        a, b = np.clip(a, -1e6, 1e6), np.clip(b, -1e6, 1e6)
        distance = (a**2).sum(axis=0)[:, None] - 2 * (a.T @ b) + (b**2).sum(axis=0)
        nearest: Index = distance.argmin(axis=1)
    return nearest


def distance(y: Wide, best: Wide, size: Wide, rows: Index, at: Index, source: Index) -> Wide:
    """Distances of columns of y from other columns of the right result, in typical sizes."""
    here, there = np.ix_(rows, at), np.ix_(rows, source)
    with np.errstate(invalid="ignore", over="ignore"):
        error: Wide = np.abs(y[here] - best[there]) / np.maximum(size[there], size[here])
    return error
