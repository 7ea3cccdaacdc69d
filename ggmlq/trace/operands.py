"""Turns a captured node of a trace into products ``y = x @ q.T``: one in all, or one per head or expert.

Weights come from the model's file by their name; other left sides, such as a cache, were read with the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from ..formats import FORMATS
from .tracer import original

DTYPES = {"f32": "<f4", "f16": "<f2", "i32": "<i4", "bf16": "<u2"}


@dataclass(frozen=True)
class Part:
    """One product of a node."""

    y: NDArray[np.float32]  # [M, N], perhaps a view of the node's memory
    x: NDArray[np.float32]  # [M, K]
    q: QuantArray  # [N, K]
    name: str = ""  # "expert 3", "head 2"
    rows: NDArray[np.int64] | None = None  # which of the node's rows these are, of an expert


@dataclass(frozen=True)
class Node:
    """The record of a node from the library's process, with its arrays."""

    op: str
    step: int
    tensors: dict[str, dict[str, Any]]  # y, and its operands
    arrays: dict[str, NDArray[np.uint8]]
    scales: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The name of the node, which is that of its result."""
        return str(self.tensors["y"]["name"])

    @property
    def weights(self) -> str:
        """The name of the weights, or of K for attention."""
        return original(str(self.tensors["w" if "w" in self.tensors else "k"]["name"]))

    def strided(self, part: str) -> NDArray[Any]:
        """An operand of plain numbers as an array [ne3, ne2, ne1, ne0], strided as it is, without a copy."""
        facts, raw = self.tensors[part], self._raw(part)
        if facts["type"] not in DTYPES:
            raise UnsupportedError(
                f"{facts['name']} is {facts['type']}; f32, f16, bf16 and i32 are read here"
            )
        dtype = np.dtype(DTYPES[facts["type"]])
        flat = raw[: len(raw) // dtype.itemsize * dtype.itemsize].view(dtype)
        return np.lib.stride_tricks.as_strided(flat, facts["ne"][::-1], facts["nb"][::-1], writeable=False)

    def floats(self, part: str) -> NDArray[np.float32]:
        """An operand as float32: not copied if it is, converted from other floats, decoded from blocks."""
        kind = self.tensors[part]["type"]
        if kind not in DTYPES:
            rows = [np.asarray(matrix) for matrix in self.matrices(part)]
            return np.stack(rows).reshape(*self.tensors[part]["ne"][:1:-1], *rows[0].shape)
        values = self.strided(part)
        if kind == "bf16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(values, np.float32)

    def matrices(self, part: str) -> list[QuantArray]:
        """The matrices of an operand that was read with the node, one for each index of its outer axes."""
        facts, raw = self.tensors[part], self._raw(part)
        k, n = facts["ne"][:2]
        fmt = FORMATS[facts["type"]]
        if fmt.block_size == 1:
            whole = np.ascontiguousarray(self.strided(part)).view(np.uint8)
        else:  # a quantized cache: rows lie in one piece
            shape = (*facts["ne"][:1:-1], n, fmt.row_bytes(k))
            strides = (*facts["nb"][:0:-1], 1)
            whole = np.ascontiguousarray(
                np.lib.stride_tricks.as_strided(raw, shape, strides, writeable=False)
            )
        return [QuantArray.from_bytes(m, fmt, (n, k)) for m in whole.reshape(-1, n, whole.shape[-1])]

    def _raw(self, part: str) -> NDArray[np.uint8]:
        if part not in self.arrays:
            facts = self.tensors[part]
            raise UnsupportedError(
                f"{facts['name']} in {facts['buffer'] or 'no buffer'} cannot be read back and is no tensor "
                "of the model's file; without that layout (--without) it can"
            )
        return self.arrays[part]


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
