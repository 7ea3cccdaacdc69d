"""The doctor's search for faults that the places of wrong elements show.

The elements that no right kernel explains make a pattern: last rows, last columns, a tile, columns
that belong elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .moved import ALTERNATIVES, CERTAIN, Match, held_twice, matched
from .numbers import Index, Mask, Wide
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
