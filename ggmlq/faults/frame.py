"""The frame of every diagnosis: survey of all of y, mistakes that explain it, verdict, report.

Each kind of product is a subclass of Kind, with its own catalogue, oracle (``survey``), mistakes
(``verdict``) and words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .explanation import Finding
from .inputs import Results
from .places import where
from .report import Words, extent, report
from .survey import Survey
from .verdicts import flipped, race

Surveyed = TypeVar("Surveyed")
OfProduct = TypeVar("OfProduct", bound=Survey)
NOTHING = "K is 0: sums of no terms are zero, without a bias"


class Kind(ABC, Generic[Surveyed]):
    """One kind of product, with the operands and results of one case, checked and on the host."""

    catalogue: ClassVar[Mapping[str, Fault]] = CATALOGUE

    def trivial(self) -> Diagnosis | None:
        """The diagnosis of a case that needs no survey."""
        return None

    @abstractmethod
    def survey(self) -> Surveyed:
        """All of y compared with the right result."""

    @abstractmethod
    def verdict(self, survey: Surveyed) -> Finding | Diagnosis:
        """The finding: which mistake explains y, or that y is right."""

    @abstractmethod
    def words(self, survey: Surveyed, finding: Finding) -> Words:
        """The part of a report that only this kind can write."""

    def diagnosis(self) -> Diagnosis:
        """The whole diagnosis, from the operands to the report."""
        with np.errstate(all="ignore"):  # wrong kernels, and kernels made wrong on purpose, overflow at will
            trivial = self.trivial()
            if trivial is not None:
                return trivial
            survey = self.survey()
            verdict = self.verdict(survey)
            if isinstance(verdict, Diagnosis):
                return verdict
            return report(self.catalogue, verdict, self.words(survey, verdict))


class Product(Kind[OfProduct]):
    """A product whose y is floats; several runs may be compared, and y may be transposed."""

    results: Results
    terms: int  # K

    @abstractmethod
    def explained(self, survey: OfProduct) -> Finding | Diagnosis:
        """The verdict on a y that is the same in every run and not transposed."""

    def verdict(self, survey: OfProduct) -> Finding | Diagnosis:
        """A race or a transposed y, which rule out a search for other mistakes; else what explains y."""
        verdict = race(survey, self.results.repeats)
        if verdict is None and self.results.flipped:
            verdict = flipped(survey)
        return self.explained(survey) if verdict is None else verdict

    def trivial(self) -> Diagnosis | None:
        """The diagnosis where y is empty (right), or K is 0 (only zeros are right); else None."""
        y = self.results.y
        if not y.size:
            return Diagnosis(True, "correct", 1.0, "There is nothing to judge: y is empty.")
        if self.terms:
            return None
        bad = np.logical_or.reduce([values != 0 for values in (y, *self.results.repeats)])
        count = int(bad.sum())
        figures: dict[str, Any] = {
            "elements": y.size,
            "elements out of bound": count,
            "elements not finite": int((~np.isfinite(y)).sum()),
        }
        right = f"The kernel is right. {NOTHING}, and so are all {' × '.join(map(str, y.shape))} elements."
        finding = Finding("correct", 0.99, "")
        if count:
            same = all(np.array_equal(values, y, equal_nan=True) for values in self.results.repeats)
            text = f"{NOTHING}; these hold what was there before"
            finding = Finding("unknown" if same else "race", 0.98, text, where(bad), count)
        words = Words(figures, right, "exact", extent(finding, figures, "zero is right"))
        return report(CATALOGUE, finding, words)
