"""Products where K is 0: sums of no terms, which are zero whatever the arithmetic."""

from __future__ import annotations

import numpy as np

from .catalogue import CATALOGUE
from .diagnosis import Diagnosis
from .explanation import Finding
from .places import where
from .readings import Wide
from .report import described

NOTHING = "K is 0: sums of no terms are zero, without a bias"


def without_terms(y: Wide, repeats: list[Wide]) -> Diagnosis:
    """The verdict on y [M, N], and on further results of the same kernel."""
    bad = np.logical_or.reduce([values != 0 for values in (y, *repeats)])
    count = int(bad.sum())
    figures = {
        "elements": y.size,
        "elements out of bound": count,
        "elements not finite": int((~np.isfinite(y)).sum()),
    }
    if not count:
        text = f"The kernel is right. {NOTHING}, and so are all {' × '.join(map(str, y.shape))} elements."
        return Diagnosis(True, "correct", 0.99, text, figures=figures, arithmetic="exact")
    race = any(not np.array_equal(values, y, equal_nan=True) for values in repeats)
    fault = CATALOGUE["race" if race else "unknown"]
    finding = Finding(fault.id, 0.98, f"{NOTHING}; these hold what was there before", where(bad), count)
    text = described(fault, finding, figures, "zero is right", (fault.wrong, fault.right))
    return Diagnosis(False, fault.id, finding.confidence, text, finding.where, figures, "exact")
