"""The doctor's search, by value, for columns of y that hold the values of other columns."""

from __future__ import annotations

import numpy as np

from .numbers import Index, Mask, Wide

SORTED = 8  # values of one row that must agree in any order
PAIRS = 1 << 24  # entries of a table of distances between columns
ALTERNATIVES = 24  # right kernels that are tried where none fits
CERTAIN = 1e-3  # of the typical size: no better arithmetic is looked for

Match = tuple[float, Index, Index, Index]


def matched(y: Wide, best: Wide, size: Wide, bad: Mask) -> Match | None:
    """The wrong columns that equal other columns of the right result: error, columns, their sources, rows."""
    wrong = np.flatnonzero(bad.any(axis=0))
    m, n = y.shape
    if len(wrong) < 2 or n < 2 or len(wrong) * n > PAIRS:
        return None
    use = np.flatnonzero(bad.any(axis=1))  # a tile is wrong in some rows alone
    if len(use) < 2 <= m:
        return None
    if m == 1 and len(wrong) >= SORTED:
        row = y[0], best[0], size[0], wrong, use
        return _sorted(*row) or _repeated(*row)
    source = sources(y[use][:, wrong], best[use], size[use])
    error = distance(y, best, size, use, wrong, source)
    # Few rows match by chance if much is allowed: rounding of activations costs about 1 %.
    allowed = 0.05 if len(use) >= 5 else 1e-3 if len(use) > 1 else 1e-5
    fits = (np.nan_to_num(error, nan=np.inf) <= allowed).all(axis=0)
    moved = source != wrong
    if fits.mean() < 0.9 or (fits & moved).sum() < (2 if m > 1 else 4):
        return None
    fits &= moved
    if not _better(error[:, fits], distance(y, best, size, use, wrong[fits], wrong[fits])):
        return None
    return float(np.median(error[:, fits])), wrong[fits], source[fits], use


def _sorted(y: Wide, best: Wide, size: Wide, wrong: Index, use: Index) -> Match | None:
    """One row alone: the same values in another order."""
    a, b = wrong[np.argsort(y[wrong])], wrong[np.argsort(best[wrong])]
    error = np.abs(y[a] - best[b]) / np.maximum(size[a], size[b])
    straight = np.abs(y[wrong] - best[wrong]) / size[wrong]
    if not (error <= 0.02).all() or not error.mean() < 0.005 or not _better(error, straight):
        return None
    order = np.argsort(a)
    return float(error.mean()), a[order], b[order], use


def _repeated(y: Wide, best: Wide, size: Wide, wrong: Index, use: Index) -> Match | None:
    """One row alone: values that stand in several places bit for bit, and are right in one of them."""
    error = np.nan_to_num(np.abs(y - best) / size, nan=np.inf)
    order = np.lexsort((error, y))  # equal values side by side, the best place of each first
    _, first, which = np.unique(y[order], return_index=True, return_inverse=True)
    source = np.empty(len(y), np.int64)
    source[order] = order[first[which]]
    at = np.flatnonzero((source != np.arange(len(y))) & (y != 0) & np.isfinite(y))
    held = np.unique(source[at])
    if len(at) < 4 or len(held) < 2 or np.isin(wrong, np.union1d(at, held)).mean() < 0.9:
        return None
    moved = np.abs(y[at] - best[source[at]]) / np.maximum(size[at], size[source[at]])
    allowed = 0.05 if len(held) >= 5 else 1e-3
    if not (error[held] <= allowed).all() or not _better(moved, error[at]):
        return None
    return float(np.median(moved)), at, source[at], use


def _better(moved: Wide, straight: Wide) -> bool:
    """True if the other place leaves at most 2 % of the squared error that the right place leaves."""
    return bool((moved**2).mean() <= 0.02 * np.nan_to_num(straight**2, nan=1e6).mean())


def held_twice(y: Wide, size: Wide, use: Index, source: Index, at: Index) -> bool:
    """True if two columns of y hold the same values: two of one source, or a copy and its source."""
    for a, b in _twins(at, source):
        apart = np.abs(y[use, a] - y[use, b]) / np.maximum(size[use, a], size[use, b])
        if np.nan_to_num(apart, nan=np.inf).max() <= CERTAIN:
            return True
    return False


def _twins(at: Index, source: Index) -> list[tuple[int, int]]:
    """Pairs of columns that should hold the same."""
    first: dict[int, int] = {}
    pairs = []
    for a, s in zip(at.tolist(), source.tolist(), strict=True):
        pairs.append((a, first.setdefault(s, s if s not in at else a)))
    return [(a, b) for a, b in pairs if a != b]


# --- distances between columns --------------------------------------------------------------


def sources(y: Wide, best: Wide, size: Wide) -> Index:
    """The nearest column of best [M, N] for each column of y [M, W]."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scale = np.maximum(size.max(axis=1), 1e-300)[:, None]
        a, b = np.nan_to_num(y / scale), np.nan_to_num(best / scale)
        a, b = np.clip(a, -1e6, 1e6), np.clip(b, -1e6, 1e6)
        distance = (a**2).sum(axis=0)[:, None] - 2 * (a.T @ b) + (b**2).sum(axis=0)
        nearest: Index = distance.argmin(axis=1)
    return nearest


def distance(y: Wide, best: Wide, size: Wide, rows: Index, at: Index, source: Index) -> Wide:
    """Distances of columns ``at`` of y from columns ``source`` of the right result, in typical sizes."""
    here, there = np.ix_(rows, at), np.ix_(rows, source)
    with np.errstate(invalid="ignore", over="ignore"):
        error: Wide = np.abs(y[here] - best[there]) / np.maximum(size[there], size[here])
    return error
