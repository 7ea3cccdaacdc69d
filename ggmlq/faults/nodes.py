"""The doctor for nodes that are no products (``diagnose_node``): which mistake gives a kernel's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import GGMLQError
from ..reference.nodes import Result, node
from ..reference.nodes.number import SMALLEST
from ..reference.nodes.registry import Mask
from .blocks.matrix import Matrix
from .blocks.rounding import ROUNDINGS
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
    length: int  # of a row of the first source


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
        length = self.inputs[0].shape[-1] if self.inputs and self.inputs[0] is not None else 0
        return NodeSurvey(right, right.wrong(self.y), length)

    def verdict(self, survey: NodeSurvey) -> Finding | Diagnosis:
        """The mistake that gives the wrong elements; else what their places say."""
        wrong = survey.wrong
        count, facts = int(wrong.sum()), where(_rows_of(wrong))
        if not count:
            text = f"The node is right: all {wrong.size} elements are in bound."
            return Diagnosis(True, "correct", 0.99, text)
        if self.op == "GET_ROWS" and isinstance(self.inputs[0], QuantArray):
            return self._decoded(survey)
        at = _placed(wrong, self.y)
        if at is not None and at.fault in ("node-unwritten", "node-outside"):
            return at
        at = _by_indices(self.op, self.y, survey) or _by_values(self.inputs, wrong) or at
        fits = self._fits(survey)
        if fits:
            fault, share = max(fits.items(), key=lambda pair: pair[1])
            if share >= EXPLAINED:
                others = tuple(name for name, s in fits.items() if s >= EXPLAINED and name != fault)
                text = f"{share:.0%} of the {count} wrong elements are those of this mistake"
                return Finding(fault, min(0.98, share) - 0.1 * bool(others), text, facts, count, others)
        right = survey.right.value
        if self.op in GROUPED:
            at = _by_factors(_planes(wrong), _planes(self.y), _planes(right), shifted=True) or at
        at = _by_factors(wrong, self.y, right) or _moved(self.y, survey) or at
        return at or Finding("unknown", 0.5, "no mistake that is known gives these elements", facts, count)

    def _decoded(self, survey: NodeSurvey) -> Finding | Diagnosis:
        """The diagnosis of blocks that are decoded row by row: that of a decoder, or of rows of other ids."""
        table, ids = self.inputs[0], np.asarray(self.inputs[1]).astype(np.int64)
        raw = np.asarray(table.raw).reshape(-1, *table.raw.shape[-2:])
        planes = np.arange(ids.size // ids.shape[-1]).repeat(ids.shape[-1]) % len(raw)
        n, k = ids.size, self.y.shape[-1]
        q = QuantArray.from_bytes(raw[planes, ids.reshape(-1)], table.format, (n, k))
        y, bad = self.y.reshape(n, k), _rows_of(survey.wrong)
        diagnosis = Matrix(y.astype(np.float64), q, ROUNDINGS["float32"]).diagnosis()
        if diagnosis.fault != "unknown" or len(raw) * raw.shape[1] > ROWS:
            return diagnosis
        every = table.dequantize().astype(y.dtype).reshape(-1, k)
        others, at = {row.tobytes(): i for i, row in enumerate(every)}, np.flatnonzero(bad.any(axis=1))
        rows = [others.get(row.tobytes()) for row in y[at]]
        if None in rows:
            return diagnosis
        text = f"{len(at)} wrong rows are others of the table: row {at[0]} is its row {rows[0]}"
        return Finding("node-ids", 0.9, text, where(bad), int(bad.sum()))

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
            if same.shape != survey.wrong.shape or not _is_nearer(self.y, other, survey):
                continue
            if not np.isposinf(other.bound).any():
                whole = one.fault == "node-function"  # many functions agree with another at one place
                share = float(same[... if whole else survey.wrong].mean())
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


INDICES = ("ARGMAX", "ARGSORT", "TOP_K")
GROUPED = ("GROUP_NORM",)
ROWS = 512  # up to which each is compared with all others


def _by_indices(op: str, y: NDArray[Any], survey: NodeSurvey) -> Finding | None:
    """The finding where the result is places of a row, and they lie outside of it or come twice."""
    if op not in INDICES:
        return None
    wrong = survey.wrong
    facts, count = where(_rows_of(wrong)), int(wrong.sum())
    length = survey.length
    beyond = wrong & ((y < 0) | (y >= length))
    if beyond.any():
        text = f"{int(beyond.sum())} of the {count} wrong elements are no places in rows of {length}"
        return Finding("node-outside", 0.95, text, facts, count)
    if op != "ARGMAX" and (np.sort(y, axis=-1)[..., 1:] == np.sort(y, axis=-1)[..., :-1]).any():
        return Finding("node-ties", 0.9, "a place comes twice in a row", facts, count)
    return None


def _by_values(inputs: Sequence[Any], wrong: Mask) -> Finding | None:
    """The finding where the values of a source tell which elements are wrong."""
    count = int(wrong.sum())
    for i, x in enumerate(inputs):
        if not isinstance(x, np.ndarray) or x.shape != wrong.shape or x.dtype.kind != "f":
            continue
        size = np.abs(x.astype(np.float64))
        for name, some in (
            ("0", size == 0), ("less than 2^-126", (size > 0) & (size < SMALLEST)),
            ("infinite", np.isinf(size)), ("NaN", np.isnan(size)), ("beyond 10", size > 10),
            ("beyond 88", size > 88),
        ):  # fmt: skip
            if 0 < some.sum() < 0.8 * some.size and not wrong[~some].any() and count >= MOST * some.sum():
                every = int(some.sum())
                text = f"of the {every} elements whose source {i} is {name}, {count} are wrong, no others"
                return Finding("node-values", 0.9, text, where(_rows_of(wrong)), count)
    return None


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


def _is_nearer(y: NDArray[Any], other: Result, survey: NodeSurvey) -> bool:
    """True where a mistake is nearer to the wrong elements than the right result: a loose bound fits all."""
    right = survey.right.value
    if right.dtype.kind != "f" or survey.right.accepts is not None:
        return True
    theirs = np.asarray(y, np.float64)[survey.wrong]
    off, before = (((theirs - x[survey.wrong]) ** 2).sum() for x in (other.value, right))
    return not off > before / 4  # not a number: sizes do not tell


def _planes(x: NDArray[Any]) -> NDArray[Any]:
    """Rows of a plane as one."""
    return x.reshape(*x.shape[:-2], 1, -1) if x.ndim > 1 else x


def _moved(y: NDArray[Any], survey: NodeSurvey) -> Finding | None:
    """The finding where wrong rows are right ones of other places."""
    right, bad = survey.right, _rows_of(survey.wrong)
    at = np.flatnonzero(bad.any(axis=1))
    if right.accepts is not None or y.shape != right.value.shape or bad.shape[1] < 4 or len(bad) > ROWS:
        return None
    value, bound, ours = (
        np.broadcast_to(x, y.shape).reshape(bad.shape).astype(np.float64)
        for x in (right.value, right.bound, y)
    )
    bound = np.maximum(bound, 1e-6 * np.abs(value))
    same = [(np.abs(ours[row] - value) <= bound).all(axis=1) for row in at]
    if not all(one.any() for one in same) or not np.ptp(value, axis=0).any():
        return None
    text = f"each of the {len(at)} wrong rows is a right one of another place: row {at[0]} has that of row "
    return Finding("node-moved", 0.9, text + str(int(same[0].argmax())), where(bad), int(bad.sum()))


def _by_factors(wrong: Mask, y: NDArray[Any], right: NDArray[Any], shifted: bool = False) -> Finding | None:
    """The finding where each wrong row is the right one times a number of its own, perhaps ``shifted``."""
    if y.shape != right.shape or right.dtype.kind != "f" or y.shape[-1] < 8:
        return None
    bad = _rows_of(wrong)
    at = bad.any(axis=1)
    ours, theirs = (x.reshape(bad.shape).astype(np.float64)[at] for x in (right, y))
    if shifted:
        ours, theirs = (x - x.mean(axis=1, keepdims=True) for x in (ours, theirs))
    size = (ours**2).sum(axis=1, keepdims=True)
    factor = (ours * theirs).sum(axis=1, keepdims=True) / size
    off = ((theirs - factor * ours) ** 2).sum(axis=1, keepdims=True)
    if not (off <= FIT * ((theirs - ours) ** 2).sum(axis=1, keepdims=True)).all():
        return None
    low, high = float(factor.min()), float(factor.max())
    if shifted:
        text = f"each wrong group is the right one times a number, {low:.6g} to {high:.6g}, and shifted"
        return Finding("node-row-sum", 0.85, text, where(bad), int(bad.sum()))
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
    nan = wrong & np.isnan(y) if y.dtype.kind == "f" and y.shape == wrong.shape else ~wrong & False
    if nan.any() and (nan.any(axis=-1) == wrong.any(axis=-1)).all():
        text = f"{int(nan.sum())} of the {count} wrong elements are not numbers, some in each wrong row"
        return Finding("node-nan", 0.9, text, facts, count)
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
