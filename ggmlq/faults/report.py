"""The doctor's report: a finding as the text and figures of a Diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .catalogue import Fault
from .diagnosis import Diagnosis
from .explanation import Finding
from .places import in_words
from .survey import Survey


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
