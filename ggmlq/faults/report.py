"""A finding in words and figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..reference.metrics import nmse
from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .explanation import Finding
from .formulas import formulas
from .judged import Judged
from .places import in_words
from .survey import Survey
from .telling_input import telling_input

ROUNDING = 1e-3  # NMSE below which an error may be one of rounding: then the nearest right kernel is a hint


def report(s: Survey, finding: Finding, claim: str | None) -> Diagnosis:
    """The diagnosis that the user gets."""
    figures = _figures(s)
    if finding.fault == "correct":
        text = _right(s, finding, figures, claim)
    else:
        near = figures["nmse against the best arithmetic"]
        apart = f"NMSE {near:.1e} against {_named(s)}" if near < ROUNDING else ""  # far off, it tells nothing
        fault = CATALOGUE[finding.fault]
        own = formulas(fault, s.case.q.format) if finding.formulas is None else finding.formulas()
        text = described(fault, finding, figures, apart, own)
    telling = telling_input(s.case.q) if finding.alike else None
    if telling is not None:
        text += (
            f"\nThe result fits {' and '.join(finding.alike)} as well: this input cannot tell them "
            "apart. Run the kernel on another one; `ggmlq diagnose --make-input FILE` writes one that can."
        )
    return Diagnosis(
        finding.fault == "correct", finding.fault, finding.confidence, text, finding.where, figures,
        s.best.arithmetic or s.best.name, finding.alike, telling,
    )  # fmt: skip


def _figures(s: Survey) -> dict[str, Any]:
    y = s.case.y
    exact = s.case.x @ s.case.q.dequantize(np.float64).T
    return {
        "nmse against the best arithmetic": plain(nmse(y, s.prediction)),
        "nmse against exact": plain(nmse(y, exact)),
        **counted(s),
    }


def counted(s: Judged) -> dict[str, Any]:
    """How many elements are wrong, and how far."""
    with np.errstate(invalid="ignore", over="ignore"):
        relative = np.abs(s.y - s.prediction) / s.size
    return {
        "elements": int(s.y.size),
        "elements out of bound": int(s.bad.sum()),
        "elements not finite": int((~np.isfinite(s.y)).sum()),
        "largest error over typical size": plain(np.max(relative, initial=0)),
    }


def plain(value: Any) -> float:
    """A figure as a report shows it."""
    return float(f"{float(value):.4g}")


def _right(s: Survey, finding: Finding, figures: dict[str, Any], claim: str | None) -> str:
    m, n = s.case.y.shape
    text = (
        f"The kernel is right. All {m}×{n} elements are those of {_named(s)}, but for the rounding "
        f"of float32 sums (NMSE {figures['nmse against the best arithmetic']:.1e} against it, "
        f"{figures['nmse against exact']:.1e} against exact arithmetic on the same blocks)."
    )
    if s.case.cast:
        text += " y came as float32, but is stored as half: each element is rounded to one at the end."
    if claim is not None and s.best.arithmetic != claim:
        text += f" It does not multiply in the claimed arithmetic {claim!r}, though."
    wild = figures["elements not finite"]
    if wild:
        why = finding.detail or "it overflows"
        text += f" {wild} elements are not finite, as in that arithmetic itself: {why}."
    return text


def _named(s: Survey) -> str:
    return f"the arithmetic {s.best.arithmetic!r}" if s.best.arithmetic else s.best.name


def described(
    fault: Fault, finding: Finding, figures: dict[str, Any], apart: str, formulas: tuple[str, str]
) -> str:
    """What is wrong, a line each: the fault, both formulas, where to look, how far y is from a right one."""
    parts = [f"{fault.id}: {fault.says}"]
    if finding.detail:
        parts.append(f"Here: {finding.detail}.")
    if fault.wrong:
        parts += [f"Wrong: {formulas[0]}"] if formulas[0] else []
        parts += [f"Right: {formulas[1]}", f"Look at {fault.look}."]
    parts.append(_places(finding.where, finding.fault == "unwritten"))
    if finding.fault != "unwritten":
        wrong = f"{figures['elements out of bound']} of {figures['elements']} elements are out of bound"
        parts.append(f"{wrong}; {apart}." if apart else f"{wrong}.")
    parts.append(finding.beside)
    if finding.left > 1e-9:
        parts.append(f"This explains all but {finding.left:.1e} of the error.")
    if fault.bugs:
        parts.append(f"Seen before: {fault.bugs}.")
    return "\n".join(part for part in parts if part)


def _places(where: dict[str, Any], unwritten: bool = False) -> str:
    """Rows and columns in words, where they are not simply all."""
    lines = in_words(where)
    text = f"{'Wrong elements' if not unwritten else 'They'} lie in {lines}." if lines else ""
    for name in ("column period", "row period"):
        if name in where:
            text += f" They repeat every {where[name]} {name.split()[0]}s."
    for name, blocks in where.get("K-blocks", {}).items():
        text += f" Of K, {name}: {blocks}."
    return text.strip()
