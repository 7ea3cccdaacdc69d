"""A fault that may have happened, how much of y it explains, and the verdict before it is put into words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EXACT = 0.99  # share of elements that a sure explanation leaves within rounding
NEAR = 0.02  # part of the error that a near explanation may leave

Formulas = Callable[[], tuple[str, str]]  # the wrong and the right one, put together when they are printed


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
    free: int = 0  # numbers fitted to y
    where: dict[str, object] = field(default_factory=dict)
    formulas: Formulas | None = None  # of this variant, where it has some of its own

    @property
    def gain(self) -> float:
        """Score that is left, over that of the best right kernel; small is good."""
        return self.score / self.right if self.right > 0 else 1.0


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
    formulas: Formulas | None = None  # of this variant, where it has some of its own
    beside: str = ""  # what else is wrong


def fits(e: Explanation) -> bool:
    """Whether it explains y at all, with fewer numbers than it explains."""
    enough = e.elements - e.free >= 1
    return enough and (level(e) > 0)


def level(e: Explanation) -> int:
    """2: explains y to the last rounding; 1: nearly all of the error; 0: not."""
    if e.gain > NEAR:
        return 0
    if e.share >= EXACT:
        return 2
    return 1 if e.elements - e.free >= 8 and e.score < 0.05 else 0
