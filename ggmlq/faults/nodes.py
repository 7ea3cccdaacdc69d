"""The doctor for nodes that are no products (``diagnose_node``): which mistake gives a kernel's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GGMLQError
from ..reference.nodes import Result, node
from ..reference.nodes.registry import Mask
from .catalogue import NODES
from .diagnosis import Diagnosis
from .findings import Finding
from .frame import Kind, Words
from .imitations import imitations
from .places import where

EXPLAINED = 0.95  # of the wrong elements that an imitation gives
FIT = 1e-3  # of the squared error that factors of rows may leave
MOST = 0.85  # of the rows: where more are wrong, the others are right by chance
VECTORS = (64, 32, 16, 8, 4)
NAN = 0x7FC0BEEF  # bits of an element that nobody wrote, as a check fills results
OUTSIDE = 0x7FC0FEED  # bits of memory around operands, as a check fills it


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
        count, facts = int(wrong.sum()), where(_rows_of(wrong))
        if not count:
            text = f"The node is right: all {wrong.size} elements are in bound."
            return Diagnosis(True, "correct", 0.99, text)
        at = _placed(wrong, self.y)
        if at is not None and at.fault in ("node-unwritten", "node-outside"):
            return at
        fits = self._fits(survey)
        if fits:
            fault, share = max(fits.items(), key=lambda pair: pair[1])
            if share >= EXPLAINED:
                others = tuple(name for name, s in fits.items() if s >= EXPLAINED and name != fault)
                text = f"{share:.0%} of the {count} wrong elements are those of this mistake"
                return Finding(fault, min(0.98, share) - 0.1 * bool(others), text, facts, count, others)
        at = _by_factors(wrong, self.y, survey.right.value) or at
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
        turned = _transposed(survey.right)
        if turned is not None:
            fits["node-transposed"] = float((turned.excess(self.y) <= 1)[survey.wrong].mean())
        return fits

    def words(self, survey: NodeSurvey, finding: Finding) -> Words:
        """The figures and sentences of the report."""
        count = int(survey.wrong.sum())
        figures = {"elements": survey.wrong.size, "elements out of bound": count}
        text = f"{count} of {survey.wrong.size} elements of {self.op} are out of bound."
        return Words(figures, "The node is right.", "f32", [text])


def _transposed(right: Result) -> Result | None:
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


# --- wrong elements by their places ------------------------------------------------------------------


def _holds(y: NDArray[Any], bits: int) -> Mask:
    """Elements that hold what a check filled memory with."""
    if y.dtype.itemsize != 4:
        return np.zeros(y.shape, np.bool_)
    mask: Mask = np.ascontiguousarray(y).view(np.uint32) == bits
    return mask


def _rows_of(wrong: Mask) -> Mask:
    """Wrong elements as a matrix: all axes but the last are rows."""
    return wrong.reshape(-1, wrong.shape[-1])


def _by_factors(wrong: Mask, y: NDArray[Any], right: NDArray[Any]) -> Finding | None:
    """The finding where each wrong row is the right one times a number of its own."""
    if y.shape != right.shape or right.dtype.kind != "f" or y.shape[-1] < 8:
        return None
    bad = _rows_of(wrong)
    at = bad.any(axis=1)
    ours, theirs = (x.reshape(bad.shape).astype(np.float64)[at] for x in (right, y))
    size = (ours**2).sum(axis=1, keepdims=True)
    factor = (ours * theirs).sum(axis=1, keepdims=True) / size
    off = ((theirs - factor * ours) ** 2).sum(axis=1, keepdims=True)
    if not (off <= FIT * ((theirs - ours) ** 2).sum(axis=1, keepdims=True)).all():
        return None
    low, high = float(factor.min()), float(factor.max())
    if low == high == 0:
        text = f"{int(at.sum())} of {len(bad)} rows are zero, the first is row {int(at.argmax())}"
        return Finding("node-rows", 0.85, text, where(bad), int(bad.sum()))
    text = f"each of the {int(at.sum())} wrong rows is the right one times a number, {low:.6g} to {high:.6g}"
    return Finding("node-row-sum", 0.9, text, where(bad), int(bad.sum()))


def _placed(wrong: Mask, y: NDArray[Any]) -> Finding | None:
    """The finding where the places of wrong elements tell the mistake."""
    bad, n = _rows_of(wrong), wrong.shape[-1]
    facts, count = where(bad), int(bad.sum())
    empty = _holds(y, NAN)
    if empty.any() and empty.shape == wrong.shape and (empty | ~wrong).all():
        return Finding("node-unwritten", 0.95, f"{count} elements were never written", facts, count)
    beyond = (
        int((_holds(y, OUTSIDE) & wrong).sum()) if y.shape == wrong.shape else 0
    )  # blocks are judged as wholes
    if beyond:
        text = f"{beyond} of the {count} wrong elements are made of memory outside of the operands"
        return Finding("node-outside", 0.95, text, facts, count)
    columns = np.flatnonzero(bad.any(axis=0))
    if columns.size and columns[0] > 0 and n - columns[0] < 64:
        tails = [v for v in VECTORS if n % v and n - n % v <= columns[0]]
        if tails and len(columns) >= (n - columns[0]) / 2:
            text = f"all are in the last {n - columns[0]} of {n} columns, which fill no vector of {tails[-1]}"
            return Finding("node-tail", 0.85, text, facts, count)
    rows: Mask = np.asarray(bad.any(axis=1))
    if 0 < rows.sum() <= MOST * len(rows) and bad[rows].mean() > 0.4:
        first = int(rows.argmax())
        text = f"{int(rows.sum())} of {len(rows)} rows are wrong as wholes, the first is row {first}"
        return Finding("node-rows", 0.7, text, facts, count)
    return None
