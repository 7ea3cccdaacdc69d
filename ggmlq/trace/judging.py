"""The judgement of a node of a trace: all elements by random sums, then the suspicious ones one by one.

A sample of elements tells in which arithmetic the library computed. In that arithmetic, sums over all rows
with random signs are compared column by column (``ggmlq/cpu/projection.py``). They only raise suspicion: the
columns with the largest errors, and the worst rows in these, go to the elementwise judge, which knows the
bound of each element and decides what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..check.judge import Elements, Judgement, candidates, judge, measure
from ..errors import UnsupportedError
from ..faults import Diagnosis
from ..formats import BlockFormat
from ..llama.program import Node, original
from ..reference.multiply import block_sums
from ..reference.operands import Activations, decoded, stored_scales, stored_sums

# --- a captured node as products y = x @ q.T: one in all, or one per head or expert ---------------
#
# Weights come from the model's file by their name; other left sides, such as a cache, were read with the
# node.


@dataclass(frozen=True)
class Part:
    """One product of a node."""

    y: NDArray[np.float32]  # [M, N], perhaps a view of the node's memory
    x: NDArray[np.float32]  # [M, K]
    q: QuantArray  # [N, K]
    name: str = ""  # "expert 3", "head 2"
    rows: NDArray[np.int64] | None = None  # which of the node's rows these are, of an expert


def parts(node: Node, model: Mapping[str, QuantArray]) -> Iterator[Part]:
    """All products of a MUL_MAT or MUL_MAT_ID."""
    w = _left(node, model)
    x, y = node.floats("x"), node.strided("y")
    if node.op == "MUL_MAT_ID":
        yield from _expert_parts(node, w, x, y)
    elif len(w) == 1:
        yield Part(y.reshape(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), w[0])
    else:  # a matrix on the left serves several on the right
        across, down = node.tensors["w"]["ne"][2:]
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                one = w[i * down // x.shape[0] * across + j * across // x.shape[1]]
                yield Part(
                    y[i, j], np.ascontiguousarray(x[i, j]), one, f"head {j}" + f" of {i}" * (x.shape[0] > 1)
                )


def finite(part: Part) -> Part | None:
    """The rows of a product whose activations are finite, None without any; codes of NaN nobody promises."""
    mask = np.isfinite(part.x).all(axis=1)
    if mask.all():
        return part
    if not mask.any():
        return None
    rows = np.flatnonzero(mask) if part.rows is None else part.rows[mask]
    return Part(part.y[mask], part.x[mask], part.q, part.name, rows)


def _expert_parts(node: Node, w: list[QuantArray], x: NDArray[np.float32], y: NDArray[Any]) -> Iterator[Part]:
    """The product of each expert; y [1, T, used, N], x [1, T, used or 1, K], ids [1, 1, T, used]."""
    ids = node.strided("i")[0, 0]
    wide = np.broadcast_to(x[0], (*ids.shape, x.shape[-1]))
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(flat[order])) + 1):
        expert = int(flat[rows[0]])
        if not 0 <= expert < len(w):
            raise UnsupportedError(f"{node.name}: expert {expert} is asked for, there are {len(w)}")
        token, used = np.divmod(rows, ids.shape[1])
        yield Part(
            y[0][token, used], np.ascontiguousarray(wide[token, used]), w[expert], f"expert {expert}", rows
        )


def _left(node: Node, model: Mapping[str, QuantArray]) -> list[QuantArray]:
    """The weights: those read with the node, else those of the file, if the library has them alike."""
    facts = node.tensors["w"]
    if "w" in node.arrays:
        return node.matrices("w")
    if node.weights not in model:
        node.matrices("w")  # raises the error that tells why they are missing
    q = in_blocks(model, node.weights)
    shape = tuple(int(n) for n in facts["ne"][::-1])
    if q.format.name != facts["type"] or (1,) * (4 - q.ndim) + q.shape != shape:
        raise UnsupportedError(
            f"{node.weights} is {q.format.name} {q.shape} in the file, {facts['type']} {shape} in the "
            "library: it was converted when it was loaded; its products cannot be judged"
        )
    if q.ndim == 1:  # a single row, which the file keeps as a vector
        return [QuantArray.from_bytes(q.raw, q.format, (1, *q.shape))]
    return [q] if q.ndim == 2 else [q[i] for i in range(q.shape[0])]


def in_blocks(model: Mapping[str, QuantArray], name: str) -> QuantArray:
    """Weights without their companion scale: a node of its own multiplies results by it."""
    q = model[name]
    return q if q.scale is None else QuantArray.from_bytes(q.raw, q.format, q.shape)


def whole(node: Node, model: Mapping[str, QuantArray]) -> Node:
    """A copy of a node with all that it reads: weights of the file too, of embeddings the rows in use."""
    tensors, arrays = dict(node.tensors), {name: a.copy() for name, a in node.arrays.items()}
    for name, facts in node.tensors.items():
        weights = model.get(original(str(facts["name"])))
        if name in arrays or weights is None:
            continue
        ids = "s1" if node.op == "GET_ROWS" and name == "s0" and weights.ndim == 2 else ""
        if ids:
            rows, places = np.unique(np.asarray(node.strided(ids)), return_inverse=True)
            shape = tensors[ids]["ne"][::-1]
            arrays[ids] = np.ascontiguousarray(places.reshape(shape), "<i4").reshape(-1).view(np.uint8)
            tensors[ids] = _contiguous({**tensors[ids], "type": "i32"}, 4, 1)
            weights = weights[rows]
        arrays[name] = np.array(weights.raw).reshape(-1).view(np.uint8)
        size = weights.format.dtype.itemsize
        ne = [*weights.shape[::-1], *facts["ne"][weights.ndim :]]
        tensors[name] = _contiguous({**facts, "ne": ne}, size, weights.format.block_size)
    return replace(node, tensors=tensors, arrays=arrays)


def _contiguous(facts: Mapping[str, Any], size: int, block: int) -> dict[str, Any]:
    """The facts about a tensor with the strides of one that lies in one piece."""
    strides = [size, size * facts["ne"][0] // block]
    for length in facts["ne"][1:3]:
        strides.append(strides[-1] * length)
    return {**facts, "nb": strides}


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


# --- wrong experts: rows used the weights of another one, or stand in other places ----------------
#
# ``gq.diagnose`` sees one product at a time. These mistakes show only when all products of the node are
# compared.

COMPARED_COLUMNS = 48  # of each row: by chance no other row agrees with so many
MOST = 64  # wrong rows that a mix-up must explain; 8 times as many rows are compared
NEAR = 1e-3  # squared distance from an explanation, by the row's own size

Rows = NDArray[np.float64]
ASK = "look at the mapping from tokens to experts: matrix_rows, ids, and the strides of both"


def mix_up(parts: Sequence[Part], bad: Sequence[Part], all_experts: Sequence[QuantArray]) -> Diagnosis | None:
    """The diagnosis "wrong-expert" or "tokens-permuted" if it explains all wrong rows it tries, else None."""
    columns = evenly_spaced(bad[0].q.shape[0], COMPARED_COLUMNS)
    rows = [(part, m) for part in parts for m in range(len(part.x))][: MOST * MOST]
    right = np.stack([_product(part.x[m : m + 1], part.q, columns)[0] for part, m in rows[: 8 * MOST]])
    got = np.stack([part.y[m, columns] for part, m in rows[: 8 * MOST]]).astype(np.float64)
    size = (right**2).sum(axis=1) + 1e-300
    wrong = np.flatnonzero(~(((got - right) ** 2).sum(axis=1) <= NEAR * size))
    if not len(wrong):
        return None
    sample = wrong[:MOST]
    by_expert = _by_another_expert(rows, got, sample, columns, all_experts)
    if by_expert is not None:
        pairs = ", ".join(f"{a} by {b}" for a, b in sorted(by_expert.items()))
        return _diagnosis(
            "wrong-expert", f"rows of an expert were multiplied with another one's weights: {pairs}; {ASK}",
            rows, wrong,
        )  # fmt: skip
    by_row = _by_another_row(right, got, sample)
    if by_row is not None:
        pairs = ", ".join(f"{_place(rows, a)} holds {_place(rows, b)}" for a, b in list(by_row.items())[:8])
        return _diagnosis(
            "tokens-permuted", f"rows of the result stand in other places: {pairs}; {ASK}", rows, wrong
        )
    return None


def _product(x: NDArray[np.float32], q: QuantArray, columns: NDArray[np.intp]) -> Rows:
    product: Rows = x.astype(np.float64) @ q[columns].dequantize(np.float64).T
    return product


def _by_another_expert(
    rows: Sequence[tuple[Part, int]], got: Rows, wrong: NDArray[np.intp], columns: NDArray[np.intp],
    all_experts: Sequence[QuantArray],
) -> dict[str, str] | None:  # fmt: skip
    """For each expert with wrong rows, the one whose weights explain them all; None where none does."""
    x = np.stack([rows[i][0].x[rows[i][1]] for i in wrong])
    named = [rows[i][0].name for i in wrong]
    off = np.full((len(all_experts), len(wrong)), np.inf)
    for e, q in enumerate(all_experts):
        y = _product(x, q, columns)
        off[e] = ((got[wrong] - y) ** 2).sum(axis=1) / ((y**2).sum(axis=1) + 1e-300)
    pairs = {}
    for name in dict.fromkeys(named):
        members = np.array([i for i, other in enumerate(named) if other == name])
        e = int(off[:, members].max(axis=1).argmin())
        if not off[e, members].max() <= NEAR:
            return None
        pairs[name] = f"expert {e}"
    return pairs


def _by_another_row(right: Rows, got: Rows, wrong: NDArray[np.intp]) -> dict[int, int] | None:
    pairs = {}
    for i in wrong:
        off = ((got[i] - right) ** 2).sum(axis=1) / ((right**2).sum(axis=1) + 1e-300)
        j = int(np.nan_to_num(off, nan=np.inf).argmin())
        if not off[j] <= NEAR:
            return None
        pairs[int(i)] = j
    return pairs


def _place(rows: Sequence[tuple[Part, int]], i: int) -> int:
    """The position of a row among those of the node."""
    part, m = rows[i]
    return m if part.rows is None else int(part.rows[m])


def _diagnosis(fault: str, text: str, rows: Sequence[tuple[Part, int]], wrong: NDArray[np.intp]) -> Diagnosis:
    names = list(dict.fromkeys(rows[i][0].name for i in wrong))
    return Diagnosis(False, fault, 0.95, text, where={"experts": names, "rows": len(wrong)})
