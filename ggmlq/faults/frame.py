"""The frame of every diagnosis: survey of all of y, mistakes that explain it, verdict, report.

Each kind of product is a subclass of Kind, with its own catalogue, oracle (``survey``), mistakes
(``verdict``) and words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import DTypeError, ShapeError
from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .findings import Finding, flipped, race
from .numbers import BF16, HALF, Wide
from .places import in_words, where
from .survey import Survey

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


# --- the report ------------------------------------------------------------------------------------


class Words(NamedTuple):
    """The part of a report that the kind of product writes."""

    figures: dict[str, Any]
    right: str  # the text where nothing is wrong
    arithmetic: str
    extent: Sequence[str]  # sentences: which elements are wrong, and how far
    formulas: tuple[str, str] | None = None  # wrong and right, instead of the catalogue's
    apart: str = "these operands cannot tell them apart."  # why others fit as well
    telling_input: NDArray[np.float32] | None = None


def report(catalogue: Mapping[str, Fault], finding: Finding, words: Words) -> Diagnosis:
    """The diagnosis that the user gets."""
    right = finding.fault == "correct"
    text = words.right if right else _described(catalogue[finding.fault], finding, words)
    if finding.alike:
        text += f"\nThe result fits {' and '.join(finding.alike)} as well: {words.apart}"
    return Diagnosis(
        right, finding.fault, finding.confidence, text, finding.where, words.figures, words.arithmetic,
        finding.alike, words.telling_input,
    )  # fmt: skip


def _described(fault: Fault, finding: Finding, words: Words) -> str:
    """The mistake, a line each: its name, both formulas, where to look, which elements it shows in."""
    wrong, right = words.formulas or (fault.wrong, fault.right)
    lines = [f"{fault.id}: {fault.says}"]
    lines += [f"Here: {finding.detail}."] if finding.detail else []
    if fault.wrong:
        lines += [f"Wrong: {wrong}"] if wrong else []
        lines.append(f"Right: {right}")
    if fault.look and (fault.wrong or fault.id != "unknown"):
        lines.append(f"Look at {fault.look}.")
    lines += [*words.extent, finding.beside]
    lines += [f"Seen before: {fault.bugs}."] if fault.bugs else []
    return "\n".join(line for line in lines if line)


def extent(finding: Finding, figures: Mapping[str, Any], apart: str) -> list[str]:
    """Sentences about the places of wrong elements, and about how far y is from a right result."""
    unwritten = finding.fault == "unwritten"
    sentences = [_places(finding.where, unwritten)]
    if not unwritten:
        wrong = f"{figures['elements out of bound']} of {figures['elements']} elements are out of bound"
        sentences.append(f"{wrong}; {apart}." if apart else f"{wrong}.")
    if finding.left > 1e-9:
        sentences.append(f"This explains all but {finding.left:.1e} of the error.")
    return sentences


def _places(where: Mapping[str, Any], unwritten: bool) -> str:
    """Rows and columns in words, where they are not simply all."""
    lines = in_words(where)
    text = f"{'They' if unwritten else 'Wrong elements'} lie in {lines}." if lines else ""
    for name in ("column period", "row period"):
        if name in where:
            text += f" They repeat every {where[name]} {name.split()[0]}s."
    for name, blocks in where.get("K-blocks", {}).items():
        text += f" Of K, {name}: {blocks}."
    return text.strip()


def counted(survey: Survey) -> dict[str, Any]:
    """Numbers of wrong elements, and their largest error."""
    relative = np.abs(survey.y - survey.prediction) / survey.size
    return {
        "elements": int(survey.y.size),
        "elements out of bound": int(survey.bad.sum()),
        "elements not finite": int((~np.isfinite(survey.y)).sum()),
        "largest error over typical size": plain(np.max(relative, initial=0)),
    }


def plain(value: Any) -> float:
    """A figure with as many digits as a report shows."""
    return float(f"{float(value):.4g}")


# --- results, checked and on the host as float64 ---------------------------------------------------

CALL = "diagnose(y, x, q)"


class Results(NamedTuple):
    """Results of one kernel on the same operands, each [M, N] in float64."""

    y: Wide
    repeats: Sequence[Wide] = ()  # of further runs
    store: float = 0.0  # relative rounding of the type that y is stored in
    flipped: bool = False  # y came as [N, M]


def results(y: Any, repeats: Any, shape: tuple[int, ...], m: int) -> Results:
    """Results y and repeats as [m, N]; each may have ``shape``, [m, N], or be transposed as [N, m]."""
    values, store, flipped = _result("y", y, shape, m)
    others = [_result(f"repeats[{i}]", other, shape, m)[0] for i, other in enumerate(repeats)]
    return Results(values, others, store, flipped)


def _result(name: str, y: Any, shape: tuple[int, ...], m: int) -> tuple[Wide, float, bool]:
    if isinstance(y, QuantArray):
        raise DTypeError(f"{CALL}: {name} is {y!r}; a kernel's output is floats; pass its array")
    values = as_floats(f"{CALL}: {name}", to_host(y))
    store = HALF if values.dtype.itemsize == 2 else 0.0
    if getattr(getattr(y, "dtype", None), "name", "") == "bfloat16":
        store = BF16
    n = shape[-1]
    flipped = values.shape == (n, m) and values.shape not in (shape, (m, n))
    if flipped:
        values = values.T
    elif values.shape not in (shape, (m, n)):
        raise ShapeError(
            f"{CALL}: {name} has shape {values.shape}, x and q give {shape}; "
            "pass the whole output of the same product, reshaped if it was dumped flat"
        )
    return np.ascontiguousarray(values.reshape(m, n), np.float64), store, flipped
