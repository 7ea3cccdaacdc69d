"""Records of the doctor: a mistake to try, how much of y it explains, and the verdict as a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .numbers import NEAR, Mask

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
