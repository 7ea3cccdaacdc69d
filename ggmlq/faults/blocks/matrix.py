"""The doctor for weights that a kernel shows as they are: a decoder's values, or y of unit vectors.

Each weight is judged alone, by the rounding of its own terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...base.indices import evenly_spaced
from ..catalogue import CATALOGUE
from ..findings import Finding
from ..frame import Kind, Words, extent, plain
from ..numbers import Mask, Wide
from ..places import where
from ..probe import Compared
from .formulas import formulas
from .operand import operand
from .readback import Part
from .rounding import Rounding, near

MOST = 8  # rows that are examined closely


class Matrix(Kind[Compared]):
    """Weights [N, K] as a kernel has them, beside those of the tensor."""

    def __init__(self, used: Wide, q: QuantArray, rounding: Rounding, *, excused: Mask | None = None) -> None:
        """``excused`` are weights about which nobody agrees; any value of them is right."""
        self.used, self.q, self.rounding = used, q, rounding
        with np.errstate(all="ignore"):
            self.right = operand(q.format, q.blocks)
        self.excused = np.zeros(used.shape, np.bool_) if excused is None else excused

    def survey(self) -> Compared:
        limit = self.rounding.limits(self.right)
        wrong = ~(near(self.used, self.right.dense, limit) | self.excused)
        return Compared(self.used, self.right.dense, wrong, limit)

    def verdict(self, survey: Compared) -> Finding:
        """The mistake that gives these weights, as far as rows with wrong ones and some others show it."""
        if not survey.wrong.any():
            return Finding("correct", 0.99, "")
        rows = self._rows(survey.wrong)
        part = Part(self.q, self.right.rows(rows), self.rounding, self.excused[rows], survey, rows)
        finding = part.finding()
        return replace(finding, where=where(survey.wrong) | finding.where, elements=int(survey.wrong.sum()))

    def _rows(self, wrong: Mask) -> Any:
        bad = np.flatnonzero(wrong.any(axis=1))
        good = np.flatnonzero(~wrong.any(axis=1))
        bad = bad[evenly_spaced(len(bad), MOST - 2)]
        return np.sort(np.concatenate([bad, good[: MOST - len(bad)]]))

    def words(self, survey: Compared, finding: Finding) -> Words:
        wrong = survey.wrong
        with np.errstate(all="ignore"):
            off = np.abs(survey.used - survey.right)[
                wrong & np.isfinite(survey.used) & np.isfinite(survey.right)
            ]
            sizes = np.abs(survey.right[np.isfinite(survey.right)])
        typical = sizes.sum() / max(sizes.size, 1)
        figures = {
            "elements": int(wrong.size), "elements out of bound": int(wrong.sum()),
            "elements not finite": int((~np.isfinite(survey.used)).sum()),
            "largest error over typical size": plain(off.max(initial=0) / max(typical, 1e-300)),
        }  # fmt: skip
        fmt = self.q.format
        right = f"The weights are right: all {wrong.size} of {fmt.name}, but for rounding."
        made = finding.formulas() if finding.formulas else formulas(CATALOGUE[finding.fault], fmt)
        return Words(
            figures,
            right,
            "exact",
            extent(finding, figures, _first(survey)),
            made,
            "these blocks cannot tell them apart.",
        )


def _first(c: Compared) -> str:
    """The first wrong weight, in numbers."""
    if not c.wrong.any():
        return ""
    n, k = np.argwhere(c.wrong)[0]
    return f"that of row {n}, k = {k} is {c.used[n, k]:.7g} and not {c.right[n, k]:.7g}"
