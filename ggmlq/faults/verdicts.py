"""From what explains y to a verdict: how sure it is, which others explain as much, where it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .explanation import Explanation, Finding, level
from .judged import Judged, Mask
from .places import Pattern, in_words, where
from .readings import Wide


def race(s: Judged, repeats: list[Wide]) -> Finding | None:
    """Results that differ by more than another order of the sums."""
    differs = np.zeros(s.bad.shape, np.bool_)
    noise = np.where(np.isfinite(s.limit), 2 * s.limit, np.inf)
    for other in repeats:
        with np.errstate(invalid="ignore"):
            near = np.abs(other - s.y) <= noise
        same = (other == s.y) | (np.isnan(other) & np.isnan(s.y))
        differs |= ~(near | same)
    if not differs.any():
        return None
    text = f"{int(differs.sum())} of {differs.size} elements differ between {1 + len(repeats)} runs"
    return Finding("race", 0.98, text, where(differs), int(differs.sum()))


def never_written(unwritten: Mask, rest: Finding) -> Finding:
    """Elements that were never written, beside what is wrong with the others."""
    count, m, n = int(unwritten.sum()), *unwritten.shape
    rows: Any = unwritten.all(axis=1)
    columns: Any = unwritten.all(axis=0)
    text = f"{count} of {unwritten.size} elements of y were never written"
    for lines, many, name in ((rows, m, "rows"), (columns, n, "columns")):
        tail = int(lines.sum())
        if 0 < tail < many and lines[-tail:].all() and count == unwritten.size // many * tail:
            text += f": the last {tail} of {many} {name}" if tail > 1 else f": the last of {many} {name}"
    if rest.fault not in ("correct", "unknown"):
        return replace(rest, beside=f"Beside that, {text}: {in_words(where(unwritten))}.")
    if rest.fault == "unknown" and not unwritten.all():
        text += f"; {rest.elements} others are wrong, by no mistake of this list"
    return Finding("unwritten", 0.98, text, where(unwritten), count)


def of_explanations(good: list[Explanation], bad: Mask) -> Finding:
    """The best of several explanations; those that explain as much are named beside it."""
    best = good[0]
    most = level(best)
    alike = {
        e.fault: e
        for e in reversed(good[1:])
        if e.fault != best.fault and level(e) == most and (most == 2 or e.score < 3 * best.score)
    }
    confidence = 0.98 if most == 2 else 0.9 if best.gain < 1e-3 else 0.75
    if best.elements < 4:
        confidence = min(confidence, 0.5)
    if alike:
        confidence = min(confidence, 0.9 / (1 + len(alike)))
    beside = f" (beside it: {best.way})" if best.way not in ("", best.variant) else ""
    detail = f"{best.variant}{beside}"
    places = where(bad) | best.where
    return Finding(
        best.fault, confidence, detail, places, int(bad.sum()), tuple(alike), best.gain, best.formulas
    )


def of_pattern(pattern: Pattern, bad: Mask) -> Finding:
    """What places show."""
    confidence = 0.95 if pattern.sure else 0.75
    return Finding(pattern.fault, confidence, pattern.variant, where(bad) | pattern.where, int(bad.sum()))


def factor(y: Wide, p: Wide, size: Wide, limit: Wide, use: Mask, way: str) -> Explanation | None:
    """One constant factor, fitted to y beside one right result."""
    a, b = (p / size)[use], (y / size)[use]
    if a.size < 4 or not (a**2).sum() > 0:
        return None
    large = np.abs(a) > np.median(np.abs(a)) / 2
    c = float(np.median(b[large] / a[large])) if large.any() else 1.0  # no few wild elements decide
    if not np.isfinite(c) or abs(c) < 1e-6 or c == 1:
        return None
    left = b - c * a
    score = float((left**2).mean())
    share = float((np.abs(left) <= (abs(c) + 1) * limit[use] / size[use]).mean())
    right = float(min(((b - a) ** 2).mean(), (b**2).mean()))
    unit = max(c * c, 1.0)  # the error grows with the factor
    text = f"y = {c:.6g} times the right result"
    return Explanation("scaled", text, way, score / unit, right / unit, share, a.size, free=1)
