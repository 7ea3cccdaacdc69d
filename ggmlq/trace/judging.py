"""The judgement of a node of a trace: all elements by random sums, then the suspicious ones one by one.

A sample of elements tells in which arithmetic the library computed. In that arithmetic, sums over all rows
with random signs are compared column by column (``ggmlq/cpu/projection.py``). They only raise suspicion: the
columns with the largest errors, and the worst rows in these, go to the elementwise judge, which knows the
bound of each element and decides what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..check.elements import Elements, measure
from ..check.judge import Judgement, candidates, judge
from ..formats import BlockFormat
from ..reference.multiply import block_sums
from ..reference.operands import Activations, decoded
from ..reference.runs import stored_scales, stored_sums
from .operands import Part

Wide = NDArray[np.float64]
SAMPLE = (8, 32)  # rows and columns that find the arithmetic
ROWS, COLUMNS = 16, 32  # the most suspicious, which are judged one by one
PARTS = 8  # of a node's products, those with the most suspicious columns
FULL_ROWS = 64  # judged at a time, where every element is
COMPILED = 1 << 18  # elements of x below which NumPy is done before anything is compiled
SEED = 0


@dataclass(frozen=True)
class Crop:
    """Rows and columns of a part that were judged one by one."""

    part: Part
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    elements: Elements


@dataclass(frozen=True)
class Verdict:
    """The judgement of a node."""

    judgement: Judgement
    worst: dict[str, Any]
    crop: Crop  # it holds the worst element
    judged: int  # elements that were judged one by one


def judge_parts(parts: Sequence[Part], backend: str, rows: int, how: str = "all") -> Verdict:
    """The verdict on all products of a node. ``rows``: rows of the node, by which a backend chooses kernels.

    ``how``: ``"sample"`` a few elements; ``"all"`` all by random sums; ``"full"`` all one by one.
    """
    names = candidates(backend, rows)
    largest = max(range(len(parts)), key=lambda i: len(parts[i].x))
    part = parts[largest]
    at = evenly_spaced(len(part.x), SAMPLE[0]), evenly_spaced(part.q.shape[0], SAMPLE[1])
    first = judge(part.y[np.ix_(*at)], part.x[at[0]], part.q[at[1]], names)
    crops = [] if first.ok and how != "sample" else [_crop(part, *at, first.arithmetic)]
    if how == "full":
        for part in parts:
            for start in range(0, len(part.x), FULL_ROWS):
                chunk = np.arange(start, min(start + FULL_ROWS, len(part.x)))
                crops.append(_crop(part, chunk, np.arange(part.q.shape[0]), first.arithmetic))
    elif how == "all":
        crops += [_crop(*suspect, first.arithmetic) for suspect in _suspects(parts, first.arithmetic)]
    return _together(first, crops)


def _crop(part: Part, rows: Any, columns: Any, arithmetic: str) -> Crop:
    y = np.ascontiguousarray(part.y[np.ix_(rows, columns)])
    return Crop(part, rows, columns, measure(y, part.x[rows], part.q[columns], arithmetic))


def _together(first: Judgement, crops: list[Crop]) -> Verdict:
    """The verdict from all crops: their worst element; one that two crops share counts once."""
    out: set[tuple[int, int, int]] = set()
    for crop in crops:
        for i, j in np.argwhere(crop.elements.out):
            out.add((id(crop.part), int(crop.rows[i]), int(crop.columns[j])))
    worst = max(crops, key=lambda crop: float(crop.elements.excess.max(initial=0.0)))
    distances = [d for crop in crops if (d := crop.elements.distance) == d]
    total = Judgement(first.arithmetic, max(distances, default=float("nan")), first.from_exact, len(out))
    return Verdict(total, _element(worst), worst, sum(crop.elements.y.size for crop in crops))


def _element(crop: Crop) -> dict[str, Any]:
    """The element that is furthest out, or nearest to it."""
    elements = crop.elements
    i, j = np.unravel_index(int(elements.excess.argmax()), elements.y.shape)
    row = crop.rows[i] if crop.part.rows is None else crop.part.rows[crop.rows[i]]
    return {
        "part": crop.part.name, "row": int(row), "column": int(crop.columns[j]),
        "got": float(elements.y[i, j]), "wanted": float(elements.expected[i, j]),
        "error": float(abs(elements.y[i, j] - elements.expected[i, j])), "limit": float(elements.limit[i, j]),
    }  # fmt: skip


# --- random sums ----------------------------------------------------------------------------


def _suspects(parts: Sequence[Part], arithmetic: str) -> list[tuple[Part, Any, Any]]:
    """The parts, rows and columns of a node whose products are furthest from their arithmetic."""
    coded: dict[int, Activations] = {}
    off = []
    for i, part in enumerate(parts):
        coded = {i: activations(part.x, part.q, arithmetic)}  # the last one may serve again below
        off.append(_column_errors(part, coded[i], arithmetic))
    by_part = sorted(range(len(parts)), key=lambda i: -float(off[i].max(initial=0.0)))
    suspects = []
    for i in by_part[:PARTS]:
        columns = np.sort(np.argsort(-off[i], kind="stable")[:COLUMNS])
        suspects.append((parts[i], _suspicious_rows(parts[i], columns, arithmetic, coded.get(i)), columns))
    return suspects


def _column_errors(part: Part, a: Activations, arithmetic: str) -> Wide:
    """The distance of each column's random sums from the right ones, by the lengths of its operands."""
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], (2, len(part.x)))
    finite = np.isfinite(part.x).all(axis=1)
    x, y = part.x, part.y
    if not finite.all():  # rows that overflowed say nothing; the sample has some of them
        x, y, signs = x[finite], y[finite], signs[:, finite]
        a = activations(x, part.q, arithmetic)
    if not len(x):
        return np.zeros(part.q.shape[0])
    expected, lengths = expected_sums(a, part.q, arithmetic, signs)
    size = np.sqrt(np.einsum("mk,mk->", x, x, dtype=np.float64) * lengths / part.q.shape[1])
    with np.errstate(all="ignore"):
        error = np.abs(_sums_of(y, signs) - expected).max(axis=0) / np.maximum(size, 1e-300)
    return np.where(np.isnan(error), np.inf, error)


def _sums_of(y: NDArray[np.float32], signs: Wide) -> Wide:
    if y.size < COMPILED:
        return signs @ y.astype(np.float64)
    sums: Wide = import_module("ggmlq.cpu.projection").sum_of_rows(np.ascontiguousarray(y), signs)
    return sums


def expected_sums(a: Activations, q: QuantArray, arithmetic: str, signs: Wide) -> tuple[Wide, Wide]:
    """The sums ``signs @ product`` in that arithmetic, [2, N], and the squared length of each row of q."""
    compiled = import_module("ggmlq.cpu.projection")
    if a.codes is not None and a.scale is not None and a.codes.size >= COMPILED:
        v = compiled.sum_of_codes(a.codes, a.scale, signs)
    else:
        v = signs @ decoded(a)
    expected, lengths = compiled.project(q, v) if q.shape[0] * q.shape[1] >= COMPILED else _project(q, v)
    rounded = _rounded_sums(a, q, arithmetic)
    if rounded is not None:
        expected = expected + (signs @ rounded[0]) @ rounded[1].T
    return expected, lengths


def _rounded_sums(a: Activations, q: QuantArray, arithmetic: str) -> tuple[Wide, Wide] | None:
    """The error of a program's own block sums, and the offsets that they serve."""
    how = reference.rule(q.format, arithmetic)
    if how.sums != "kept" or a.sums is None or not isinstance(q.format, BlockFormat):
        return None
    offset = reference.weights(q, arithmetic).offset
    if offset is None:
        return None
    exact = decoded(a).reshape(len(a), -1, q.format.group).sum(axis=-1)
    return exact - block_sums(a, q.format.group, how), offset


def _project(q: QuantArray, v: Wide) -> tuple[Wide, Wide]:
    w = q.dequantize(np.float64)
    return v @ w.T, (w**2).sum(axis=1)


def activations(x: NDArray[np.float32], q: QuantArray, arithmetic: str) -> Activations:
    """The activations of ``reference.activations``, without its ties; large arrays take compiled code."""
    how = reference.rule(q.format, arithmetic).quantizer
    if how is None or x.size < COMPILED:
        return reference.activations(x, q.format, arithmetic)
    with np.errstate(all="ignore"):
        codes, d = import_module("ggmlq.cpu.projection").quantize(np.ascontiguousarray(x), how)
        sums = None if how.sums is None else stored_sums(x, codes, d, how)
        return Activations(codes, None, stored_scales(d, how), sums, how.run)


def _suspicious_rows(part: Part, columns: Any, arithmetic: str, a: Activations | None) -> NDArray[np.intp]:
    """The rows with the largest errors in these columns."""
    if len(part.x) <= ROWS:
        return np.arange(len(part.x))
    a = activations(part.x, part.q, arithmetic) if a is None else a
    w = part.q[columns].dequantize(np.float64)
    y = part.y[:, columns].astype(np.float64)
    with np.errstate(all="ignore"):
        if a.codes is not None and a.scale is not None and a.codes.size >= COMPILED:
            expected, lengths = import_module("ggmlq.cpu.projection").products(a.codes, a.scale, w)
        else:
            values = decoded(a)
            expected, lengths = values @ w.T, (values**2).sum(axis=1)
        rounded = _rounded_sums(a, part.q[columns], arithmetic)
        if rounded is not None:
            expected = expected + rounded[0] @ rounded[1].T
        error = np.abs(y - expected) / np.sqrt(lengths[:, None] * (w**2).sum(axis=1) + 1e-300)
    worst = np.where(np.isnan(error), np.inf, error).max(axis=1)
    return np.sort(np.argsort(-worst, kind="stable")[:ROWS])
