"""Turns a captured node of a trace into products ``y = x @ q.T``: one in all, or one per head or expert.

Weights come from the model's file by their name; other left sides, such as a cache, were read with the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from ..llama.captured import Node, original


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
    q = model[node.weights]
    shape = tuple(int(n) for n in facts["ne"][::-1])
    if q.format.name != facts["type"] or (1,) * (4 - q.ndim) + q.shape != shape:
        raise UnsupportedError(
            f"{node.weights} is {q.format.name} {q.shape} in the file, {facts['type']} {shape} in the "
            "library: it was converted when it was loaded; its products cannot be judged"
        )
    if q.ndim == 1:  # a single row, which the file keeps as a vector
        return [QuantArray.from_bytes(q.raw, q.format, (1, *q.shape))]
    return [q] if q.ndim == 2 else [q[i] for i in range(q.shape[0])]


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
