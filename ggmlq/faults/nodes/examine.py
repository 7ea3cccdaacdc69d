"""``diagnose_node``: from the result of a node to the mistake that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import GGMLQError
from ...reference.nodes import Result, node
from ...reference.nodes.registry import Mask
from ..diagnosis import Diagnosis
from ..explanation import Finding
from ..frame import Kind
from ..places import where
from ..report import Words
from .catalogue import NODES
from .imitate import imitations
from .places import by_factors, placed, rows_of

EXPLAINED = 0.95  # of the wrong elements that an imitation gives


@dataclass(frozen=True, eq=False)
class NodeSurvey:
    """All elements of a result beside the right ones."""

    right: Result
    wrong: Mask


class NodeCase(Kind[NodeSurvey]):
    """One node for the doctor: its sources, parameters and result."""

    catalogue = NODES

    def __init__(self, op: str, inputs: Sequence[Any], params: Mapping[str, Any], y: NDArray[Any]) -> None:
        self.op, self.inputs, self.params, self.y = op, inputs, params, np.asarray(y)

    def trivial(self) -> Diagnosis | None:
        """The diagnosis of a node without elements."""
        if self.y.size:
            return None
        return Diagnosis(True, "correct", 1.0, "There is nothing to judge: y is empty.")

    def survey(self) -> NodeSurvey:
        """The right result, and the elements that are out of its bound."""
        right = node(self.op, self.inputs, self.params)
        return NodeSurvey(right, right.wrong(self.y))

    def verdict(self, survey: NodeSurvey) -> Finding | Diagnosis:
        """The mistake that gives the wrong elements; else what their places say."""
        wrong = survey.wrong
        count, facts = int(wrong.sum()), where(rows_of(wrong))
        if not count:
            text = f"The node is right: all {wrong.size} elements are in bound."
            return Diagnosis(True, "correct", 0.99, text)
        at = placed(wrong, self.y)
        if at is not None and at.fault in ("node-unwritten", "node-outside"):
            return at
        fits = self._fits(survey)
        if fits:
            fault, share = max(fits.items(), key=lambda pair: pair[1])
            if share >= EXPLAINED:
                others = tuple(name for name, s in fits.items() if s >= EXPLAINED and name != fault)
                text = f"{share:.0%} of the {count} wrong elements are those of this mistake"
                return Finding(fault, min(0.98, share) - 0.1 * bool(others), text, facts, count, others)
        at = by_factors(wrong, self.y, survey.right.value) or at
        return at or Finding("unknown", 0.5, "no mistake that is known gives these elements", facts, count)

    def _fits(self, survey: NodeSurvey) -> dict[str, float]:
        """The part of the wrong elements that each mistake explains, at best."""
        fits: dict[str, float] = {}
        for one in imitations(self.op, self.inputs, self.params):
            try:
                other = node(one.op, one.inputs, one.params)
            except (GGMLQError, ValueError, IndexError, KeyError):  # such operands cannot have this mistake
                continue
            if other.value.shape != survey.right.value.shape:
                continue
            same = other.excess(self.y) <= 1
            if same.shape == survey.wrong.shape and not np.isposinf(other.bound).any():
                share = float(same[survey.wrong].mean())
                fits[one.fault] = max(fits.get(one.fault, 0.0), share)
        turned = transposed(survey.right)
        if turned is not None:
            fits["node-transposed"] = float((turned.excess(self.y) <= 1)[survey.wrong].mean())
        return fits

    def words(self, survey: NodeSurvey, finding: Finding) -> Words:
        """The figures and sentences of the report."""
        count = int(survey.wrong.sum())
        figures = {"elements": survey.wrong.size, "elements out of bound": count}
        text = f"{count} of {survey.wrong.size} elements of {self.op} are out of bound."
        return Words(figures, "The node is right.", "f32", [text])


def transposed(right: Result) -> Result | None:
    """The right result with rows and columns exchanged in memory."""
    shape = right.value.shape
    if right.accepts is not None or len(shape) < 2 or min(shape[-2:]) < 2:
        return None
    value, bound = (
        x.swapaxes(-1, -2).reshape(shape) for x in (right.value, np.broadcast_to(right.bound, shape))
    )
    return replace(right, value=value, bound=bound)


def diagnose_node(op: str, inputs: Sequence[Any], params: Mapping[str, Any], y: Any) -> Diagnosis:
    """The diagnosis of a node's result: right, a mistake by name, or unknown.

    ``op``, ``inputs`` and ``params`` as for :func:`ggmlq.reference.node`; ``y`` is a kernel's result.
    """
    return NodeCase(op, inputs, params, y).diagnosis()
