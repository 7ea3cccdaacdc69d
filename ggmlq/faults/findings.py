"""Findings of the doctor, made of explanations, patterns, runs that differ, and constant factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from .numbers import NEAR, Mask, Wide
from .places import Pattern, where
from .survey import Survey

EXACT = 0.99  # share of elements that a sure explanation leaves within rounding

Formulas = Callable[[], tuple[str, str]]  # the wrong and the right one, put together when they are printed
Replay = TypeVar("Replay")


@dataclass(frozen=True, eq=False)
class Mistake(Generic[Replay]):
    """One variant of a mistake in a catalogue, and what imitates it (``replay``)."""

    fault: str
    words: str  # of the variant
    replay: Replay  # weights misread, another result, or settings of a step: by the kind of product
    free: int = 0  # how many numbers were fitted to y
    beside: str = ""  # the arithmetic in which it is replayed
    columns: Mask | None = None  # columns that it says anything about; None: all
    where: Mapping[str, Any] = field(default_factory=dict)
    formulas: Formulas | None = None  # of this variant, where it has some


@dataclass(frozen=True, eq=False)
class Explanation:
    """One fault that may have happened, and how much of y it explains."""

    fault: str
    variant: str
    way: str  # the arithmetic beside the fault
    score: float
    right: float  # score of the best right kernel (or of zero) on the same elements
    share: float  # of the elements explained to the last rounding
    elements: int  # on which it was judged
    free: int = 0  # how many numbers were fitted to y
    where: Mapping[str, Any] = field(default_factory=dict)
    formulas: Formulas | None = None  # of this variant, where it has some

    @property
    def gain(self) -> float:
        """The score over that of the best right kernel; small is good."""
        return self.score / self.right if self.right > 0 else 1.0

    @property
    def level(self) -> int:
        """2 if it explains y to the last rounding, 1 if nearly all of the error, else 0."""
        if self.gain > NEAR:
            return 0
        if self.share >= EXACT:
            return 2
        return 1 if self.elements - self.free >= 8 and self.score < 0.05 else 0

    @property
    def fits(self) -> bool:
        """True if its level is not 0, and it was judged on more elements than it fitted numbers."""
        return self.elements > self.free and self.level > 0


@dataclass(frozen=True)
class Finding:
    """The verdict before it is put into words."""

    fault: str
    confidence: float
    detail: str
    where: dict[str, Any] = field(default_factory=dict)
    elements: int = 0
    alike: tuple[str, ...] = ()
    left: float = 0.0  # part of the error that stays unexplained
    formulas: Formulas | None = None  # of this variant, where it has some
    beside: str = ""  # what else is wrong


def race(s: Survey, repeats: Sequence[Wide]) -> Finding | None:
    """The finding that runs differ by more than another order of sums explains; None if they agree."""
    differs = np.zeros(s.bad.shape, np.bool_)
    noise = np.where(np.isfinite(s.limit), 2 * s.limit, np.inf)
    for other in repeats:
        near = np.abs(other - s.y) <= noise
        differs |= ~(near | (other == s.y) | (np.isnan(other) & np.isnan(s.y)))
    if not differs.any():
        return None
    text = f"{int(differs.sum())} of {differs.size} elements differ between {1 + len(repeats)} runs"
    return Finding("race", 0.98, text, where(differs), int(differs.sum()))


def flipped(s: Survey) -> Finding:
    """The finding for a y that came as [N, M]."""
    if not s.bad.any():
        return Finding("transposed", 0.95, "y came as [N, M]; read so, it is right", elements=s.y.size)
    return Finding("unknown", 0.5, "y came as [N, M], and is wrong either way")


def correct(s: Survey) -> Finding:
    """The finding that y is right; less sure with few elements, which may be right by chance."""
    return Finding("correct", 0.99 if s.y.size >= 4 else 0.9, "")


def from_explanations(good: Sequence[Explanation], bad: Mask) -> Finding:
    """The finding of the first explanation, with the names of others that explain as much."""
    best = good[0]
    alike = {
        e.fault: e
        for e in reversed(good[1:])
        if e.fault != best.fault and e.level == best.level and (best.level == 2 or e.score < 3 * best.score)
    }
    confidence = 0.98 if best.level == 2 else 0.9 if best.gain < 1e-3 else 0.75
    if best.elements < 4:
        confidence = min(confidence, 0.5)
    if alike:
        confidence = min(confidence, 0.9 / (1 + len(alike)))
    beside = f" (beside it: {best.way})" if best.way not in ("", best.variant) else ""
    places = where(bad) | dict(best.where)
    return Finding(
        best.fault, confidence, best.variant + beside, places, int(bad.sum()), tuple(alike), best.gain,
        best.formulas,
    )  # fmt: skip


def from_pattern(pattern: Pattern, bad: Mask) -> Finding:
    """The finding of a pattern of places."""
    confidence = 0.95 if pattern.sure else 0.75
    return Finding(pattern.fault, confidence, pattern.variant, where(bad) | pattern.where, int(bad.sum()))


def factor(s: Survey, right: str, prediction: Wide | None = None) -> Explanation | None:
    """The explanation that y is a right result times one constant, which is fitted; None if none fits."""
    p = s.prediction if prediction is None else prediction
    use = np.isfinite(s.y) & np.isfinite(s.prediction)
    a, b, limit = (p / s.size)[use], (s.y / s.size)[use], (s.limit / s.size)[use]
    if a.size < 4 or not (a**2).sum() > 0:
        return None
    large = np.abs(a) > np.median(np.abs(a)) / 2
    c = float(np.median(b[large] / a[large])) if large.any() else 1.0  # no few wild elements decide
    if not np.isfinite(c) or abs(c) < 1e-6 or c == 1:
        return None
    left = b - c * a
    share = float((np.abs(left) <= (abs(c) + 1) * limit).mean())
    base = float(min(((b - a) ** 2).mean(), (b**2).mean()))
    unit = max(c * c, 1.0)  # the error grows with the factor
    score = float((left**2).mean()) / unit
    text = f"y = {c:.6g} times the right result"
    return Explanation("scaled", text, right, score, base / unit, share, a.size, free=1)
