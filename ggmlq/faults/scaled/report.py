"""A finding about a product of scaled arrays in words and figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...reference.metrics import nmse
from ..diagnosis import Diagnosis
from ..explanation import Finding
from ..report import counted, described, plain
from .catalogue import SCALED
from .scene import BF16, Survey

ARITHMETIC = "codes"  # as the rungs of scaled_linear declare it


def report(s: Survey, finding: Finding) -> Diagnosis:
    """The diagnosis that the user gets."""
    figures = _figures(s)
    if finding.fault == "correct":
        text = _right(s, finding, figures)
    else:
        apart = f"NMSE {figures['nmse against exact']:.1e} against the exact product of {s.way.name}"
        fault = SCALED[finding.fault]
        text = described(fault, finding, figures, apart, (fault.wrong, fault.right))
    if finding.alike:
        others = " and ".join(finding.alike)
        text += f"\nThe result fits {others} as well: these operands cannot tell them apart."
    return Diagnosis(
        finding.fault == "correct", finding.fault, finding.confidence, text, finding.where, figures,
        ARITHMETIC, finding.alike,
    )  # fmt: skip


def _figures(s: Survey) -> dict[str, Any]:
    error = np.abs(s.y - s.prediction)
    size = np.abs(s.prediction).sum()
    return {
        "nmse against exact": plain(nmse(s.y, s.prediction)),
        "mean error over mean": plain(error.sum() / size if size else error.sum()),
        **counted(s),
    }


def _right(s: Survey, finding: Finding, figures: dict[str, Any]) -> str:
    m, n = s.y.shape
    why = finding.detail or "float32 sums"
    text = (
        f"The kernel is right. All {m}×{n} elements are the product of {s.way.name}, but for the rounding of "
        f"{why} (mean error {figures['mean error over mean']:.1e} of the mean)."
    )
    if s.case.cast:
        kept = "bfloat16" if s.case.store == BF16 else "half"
        text += f" y came as float32, but is stored as {kept}: each element is rounded to one at the end."
    wild = figures["elements not finite"]
    if wild:
        text += f" {wild} elements are not finite, as in the product itself."
    loose = int((~np.isfinite(s.limit)).sum())
    if loose:
        text += f" {loose} elements lie where float32 overflows: of them nothing can be told."
    return text
