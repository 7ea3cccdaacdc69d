"""The doctor's search for faults that the places of wrong elements show.

The elements that no right kernel explains make a pattern: last rows, last columns, a tile, columns
that belong elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .numbers import NEAR, Index, Mask, Wide
from .survey import Survey


@dataclass(frozen=True, eq=False)
class Pattern:
    """A fault that the places of wrong elements show."""

    fault: str
    variant: str
    sure: bool  # every bad element is accounted for by value, not by place alone
    where: dict[str, object] = field(default_factory=dict)


def runs_of(indices: Index | list[int]) -> list[tuple[int, int]]:
    """Sorted indices as half-open ranges."""
    runs: list[tuple[int, int]] = []
    for i in (int(i) for i in indices):
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def where(bad: Mask) -> dict[str, Any]:
    """Rows, columns and tiles that hold wrong elements, as half-open ranges."""
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    places: dict[str, Any] = {
        "elements": int(bad.sum()),
        "of": int(bad.size),
        "rows": runs_of(rows),
        "columns": runs_of(columns),
    }
    if len(rows) and bad[np.ix_(rows, columns)].all() and bad.sum() < bad.size:
        places["tiles"] = [(*row, *column) for row in runs_of(rows)[:16] for column in runs_of(columns)[:16]]
    period = _period(columns, bad.shape[1])
    if period:
        places["column period"] = period
    period = _period(rows, bad.shape[0])
    if period:
        places["row period"] = period
    return places


def in_words(where: Mapping[str, Any], most: int = 6) -> str:
    """Rows, columns, steps, sequences and units that hold elements, as inclusive ranges."""
    parts = []
    for name in ("rows", "columns", "steps", "sequences", "units"):
        runs = where.get(name)
        if runs:
            shown = ", ".join(f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in runs[:most])
            parts.append(f"{name} {shown}{' …' if len(runs) > most else ''}")
    return " and ".join(parts)


def _period(places: Index, n: int) -> int:
    """The distance at which a pattern of places repeats, 0 where it does not."""
    if not 2 <= len(places) < n:
        return 0
    starts = np.array([start for start, _ in runs_of(places)])
    steps = np.diff(starts)
    return int(steps[0]) if len(steps) >= 2 and (steps == steps[0]).all() and steps[0] > 1 else 0


def wrong_places(survey: Survey) -> Mask:
    """The bad elements; where small errors make 30 % bad or more, only those far worse than that."""
    bad = survey.bad
    if bad.mean() < 0.3:
        return bad
    relative = np.abs(survey.y - survey.prediction) / survey.size
    relative = np.nan_to_num(relative, nan=np.inf)
    finite = relative[np.isfinite(relative)]
    middle = float(np.median(finite)) if finite.size else 0.0
    if not 0 < middle < 0.02:
        return bad
    far: Mask = relative > max(20 * middle, 0.02)
    return far if far.any() else bad


# --- patterns -------------------------------------------------------------------------------


def patterns(survey: Survey, bad: Mask) -> list[Pattern]:
    """Faults that the places of wrong elements show, the surest first."""
    shapes = (
        _transposed(survey, bad), _moved(survey, bad, 1), _moved_tile(survey, bad), _moved(survey, bad, 0),
        _tails(survey, bad),
    )  # fmt: skip
    return sorted((shape for shape in shapes if shape is not None), key=lambda shape: not shape.sure)


def _near(survey: Survey, bad: Mask, y: Wide, prediction: Wide, size: Wide) -> Mask:
    """True where y equals a prediction (of another place), but for rounding."""
    good = np.abs(survey.y - survey.prediction)[~bad]
    typical = survey.size[~bad]
    # Nothing right to measure by: rounding of activations costs about 1 %.
    noise = max(4 * float(np.max(good / typical)), 1e-5) if good.size else 0.05
    near: Mask = np.abs(y - prediction) <= noise * np.maximum(size, np.abs(prediction) / 8)
    return near


def _transposed(survey: Survey, bad: Mask) -> Pattern | None:
    """A result that was written column by column."""
    y, best = survey.y, survey.prediction
    m, n = y.shape
    if min(m, n) < 2 or not bad.any():
        return None
    ours = best.T.reshape(m, n)
    size = np.maximum(survey.size, survey.size.T.reshape(m, n))
    straight, turned = (np.nan_to_num((y - p) / size, nan=1e3) for p in (best, ours))
    elsewhere = np.abs(ours - best) > 0.1 * size
    if elsewhere.sum() < 2 or not (turned**2).mean() < min(0.02 * (straight**2).mean(), 1e-3):
        return None
    return Pattern("transposed", "y holds its transpose", sure=True)


def _moved(survey: Survey, bad: Mask, axis: int) -> Pattern | None:
    """Columns (axis 1) or rows (axis 0) of y that hold the values of others."""
    tried = [survey.prediction]
    if bad.mean() > 0.3:  # too little is right to trust the choice of the right kernel
        tried += survey.alternatives[:ALTERNATIVES]
    match = _best_match(survey, tried, bad, axis)
    if bad.mean() > 0.3 and (match is None or match[0] > CERTAIN):
        match = _best_match(survey, survey.fitting(axis), bad, axis) or match
    if match is None:
        return None
    _, at, source, use = match
    y, size = (a if axis == 1 else a.T for a in (survey.y, survey.size))
    twice = held_twice(y, size, use, source, at)
    return as_pattern(at, source, len(use) < len(y), axis, use, twice)


def _best_match(survey: Survey, tried: list[Wide], bad: Mask, axis: int) -> Match | None:
    y, size = (a if axis == 1 else a.T for a in (survey.y, survey.size))
    wrong: Mask = bad if axis == 1 else bad.T
    matches = [matched(y, best if axis == 1 else best.T, size, wrong) for best in tried]
    return min((match for match in matches if match is not None), key=lambda match: match[0], default=None)


def as_pattern(
    at: Index, source: Index, part: bool, axis: int, use: Index,
    twice: bool,
) -> Pattern:  # fmt: skip
    """The pattern of columns (or rows) ``at`` that hold those of ``source``, as copies if ``twice``."""
    name = "columns" if axis == 1 else "rows"
    moves = {int(a): int(s) for a, s in zip(at, source, strict=True)}
    sample = dict(list(moves.items())[:8])
    places: dict[str, object] = {"moved": sample}
    if part:
        places["only in " + ("rows" if axis == 1 else "columns")] = runs_of(use)
    text = ", ".join(f"{a} holds {s}" for a, s in list(sample.items())[:4])
    if not twice:
        fault = "rows-permuted" if axis == 1 else "tokens-permuted"
        return Pattern(fault, f"{name} of y exchanged: {name[:-1]} {text}", True, places)
    return Pattern("tile-duplicated", f"{name} of y repeat others: {name[:-1]} {text}", True, places)


def _moved_tile(survey: Survey, bad: Mask) -> Pattern | None:
    """A tile of y that repeats another one, moved along both axes."""
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    m, n = bad.shape
    if bad.sum() < 4 or bad.sum() > 0.9 * bad.size or not len(rows):
        return None
    y, best, size = survey.y, survey.prediction, survey.size
    i, j = (int(v) for v in np.argwhere(bad)[0])
    r1, c1 = int(rows[-1]), int(columns[-1])
    starts = np.argwhere(_near(survey, bad, np.full((m, n), y[i, j]), best, size))
    for a, b in starts[:4096]:
        di, dj = int(a) - i, int(b) - j
        inside = rows[0] + di >= 0 and r1 + di < m and columns[0] + dj >= 0 and c1 + dj < n
        if (di, dj) == (0, 0) or not inside:
            continue
        at = np.argwhere(bad)
        there = (at[:, 0] + di, at[:, 1] + dj)
        here = (at[:, 0], at[:, 1])
        if _near(survey, bad, y[here], best[there], size[there]).mean() > 0.95:
            text = (
                f"rows {rows[0]} to {r1}, columns {columns[0]} to {c1} repeat what stands "
                f"{di:+} rows, {dj:+} columns away"
            )
            return Pattern("tile-duplicated", text, True, {"moved by": (di, dj)})
    return None


def _tails(survey: Survey, bad: Mask) -> Pattern | None:
    """Only the last rows, or only the last columns, wrong; fewer than half of them."""
    for axis, fault, name in ((0, "m-tail", "rows"), (1, "n-tail", "columns")):
        wrong: Mask = np.asarray(bad.any(axis=1 - axis))
        full = bad.mean(axis=1 - axis)
        n = len(wrong)
        first = int(np.argmax(wrong)) if wrong.any() else n
        tail = n - first
        if not 0 < tail < n or not wrong[first:].all() or full[first:].mean() < 0.5:
            continue
        last = np.arange(first, n)
        part = np.take(survey.y, last, axis=axis)[np.take(bad, last, axis=axis)]
        zero = bool((part == 0).all())
        if not zero and 2 * tail >= n:  # less than a tile is left over, at least one was whole
            continue
        what = "zero" if zero else "wrong"
        return Pattern(fault, f"the last {tail} of {n} {name} of y are {what}", zero, {"tail": tail})
    return None


def by_place(wild: Mask) -> Pattern:
    """The pattern of NaN and infinities: the last rows, the last columns, or anywhere."""
    rows, columns = (np.flatnonzero(wild.any(axis=1 - axis)) for axis in (0, 1))
    whole = wild[np.ix_(rows, columns)].all()
    for at, across, axis, fault, name in ((rows, columns, 0, "m-tail", "rows"),
                                          (columns, rows, 1, "n-tail", "columns")):  # fmt: skip
        n = wild.shape[axis]
        last = at[-1] == n - 1 and len(runs_of(at)) == 1 and 2 * len(at) < n
        if whole and last and len(across) == wild.shape[1 - axis]:
            return Pattern(fault, f"the last {len(at)} of {n} {name} of y are not finite", False)
    return Pattern("nan", f"{int(wild.sum())} of {wild.size} elements of y are not finite", False)


# --- blocks of K that are missing or scaled: y - right = Σ c_b · part_b, solved for c --------------

SHOWN = 16


def blocks_of_k(parts: Wide, error: Wide, usable: Mask, ends: Index, most: float = NEAR) -> dict[str, object]:
    """Blocks of K that are missing, counted twice or scaled; none if they leave over ``most`` of the error.

    ``parts`` [blocks, M, N] are the terms of each block, ``ends`` its first column and the end of the last.
    """
    if len(parts) < 2 or usable.sum() < 3 * len(parts):
        return {}
    a, b = parts[:, usable].T, error[usable]
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return {}
    c, *_ = np.linalg.lstsq(a, b, rcond=None)
    if ((b - a @ c) ** 2).sum() > most * max((b**2).sum(), 1e-300):
        return {}
    ranges: dict[str, object] = {}
    near = {name: np.abs(c - value) < 0.05 for name, value in (("missing", -1.0), ("counted twice", 1.0))}
    for name, which in near.items():
        if which.any():
            ranges[name] = [(int(ends[i]), int(ends[j])) for i, j in runs_of(np.flatnonzero(which))]
    other = np.flatnonzero((np.abs(c) >= 0.05) & ~near["missing"] & ~near["counted twice"])
    if len(other):
        ranges["scaled"] = {f"{ends[i]} to {ends[i + 1]}": round(float(1 + c[i]), 4) for i in other[:SHOWN]}
    return ranges


DEAR = 1 << 25  # comparisons
LEAST = 3  # wrong elements that must be found elsewhere


def exchanged(s: Survey, bad: Mask) -> Pattern | None:
    """The pattern of y whose wrong columns (or rows) all equal other right ones; None if some do not.

    It is for right results that are known up to their last rounding: then values alone identify a column,
    even with one row in half precision. ``matched`` has to allow larger differences.
    """
    return _along(s, bad, 1) or _along(s, bad, 0)


def _along(s: Survey, bad: Mask, axis: int) -> Pattern | None:
    y, p, limit, size = (a if axis == 1 else a.T for a in (s.y, s.prediction, s.limit, s.size))
    wrong = bad if axis == 1 else bad.T
    at, use = np.flatnonzero(wrong.any(axis=0)), np.flatnonzero(wrong.any(axis=1))
    n = y.shape[1]
    if len(at) < 2 or len(at) * len(use) < LEAST or len(use) * len(at) * n > DEAR:
        return None
    apart = np.abs(y[np.ix_(use, at)][:, :, None] - p[use][:, None]) / limit[use][:, None]
    loose = np.flatnonzero(~np.isfinite(limit[use]).all(axis=0))  # float32 overflows there: nothing is told
    worst = np.nan_to_num(apart.max(axis=0), nan=np.inf)
    worst[:, loose] = np.inf
    worst[np.arange(len(at)), at] = np.inf
    source = worst.argmin(axis=1)
    if not (worst.min(axis=1) <= 1).all():
        return None
    return as_pattern(at, source, len(use) < len(y), axis, use, held_twice(y, size, use, source, at))


# --- columns that hold the values of other columns, by value ---------------------------------------

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
    originals = np.unique(source[at])
    if len(at) < 4 or len(originals) < 2 or np.isin(wrong, np.union1d(at, originals)).mean() < 0.9:
        return None
    moved = np.abs(y[at] - best[source[at]]) / np.maximum(size[at], size[source[at]])
    allowed = 0.05 if len(originals) >= 5 else 1e-3
    if not (error[originals] <= allowed).all() or not _better(moved, error[at]):
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
