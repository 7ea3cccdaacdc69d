"""The answer of ``gq.diagnose`` and ``gq.diagnose_gru``: a Diagnosis."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on one kernel's result. Prints as its text.

    Attributes
    ----------
    ok : bool
        True where the kernel is right.
    fault : str
        An id of docs/faults.md, ``"correct"`` or ``"unknown"``.
    confidence : float
        From 0 to 1.
    where : dict
        Rows, columns and tiles with wrong elements, and blocks of K, as half-open ranges.
    text : str
        A few lines: what is wrong, the wrong and the right formula, where to look.
    figures : dict
        NMSE against the best arithmetic and against exact, elements out of bound, and so on.
    arithmetic : str
        The arithmetic that explains most of the result.
    alternatives : tuple of str
        Other faults that explain the result as well.
    telling_input : array, optional
        Activations on which this fault and the alternatives differ.
    """

    ok: bool
    fault: str
    confidence: float
    text: str
    where: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    arithmetic: str = ""
    alternatives: tuple[str, ...] = ()
    telling_input: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """All but the arrays, ready for JSON: keys are names, with ``_`` where words have spaces."""
        return {
            "ok": self.ok,
            "fault": self.fault,
            "confidence": round(self.confidence, 3),
            "arithmetic": self.arithmetic,
            "alternatives": list(self.alternatives),
            "where": _named(self.where),
            "figures": _named(self.figures),
            "text": self.text,
        }


def _named(facts: Any) -> Any:
    """Facts under keys that are names: ``column_period`` for "column period"."""
    if isinstance(facts, dict):
        return {
            re.sub(r"\W+", "_", str(key)).strip("_").lower(): _named(value) for key, value in facts.items()
        }
    return facts
