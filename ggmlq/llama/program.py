"""``Program``: a small graph of ggml's operations as a list of calls, which the library's process builds.

Tensors have numbers: leaves come first, then the results of the calls in their order. The result of the last
call is the node that is judged; calls before it look at leaves otherwise (views, permutations) or compute
what it gets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from ..formats import FORMATS
from .guards import Stray

Argument = tuple[str, Any]  # of a call: t tensor, n none, i int, l int64, f float, z size_t, b bool, I ints


@dataclass(frozen=True)
class Leaf:
    """A tensor that is filled before the graph runs: its type, and its lengths in ggml's order."""

    type: str
    ne: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        fmt = FORMATS[self.type]
        return math.prod(self.ne) // fmt.block_size * fmt.dtype.itemsize


@dataclass(frozen=True)
class Step:
    """A call of one of ggml's functions, without the context, which is always its first argument."""

    function: str  # without the prefix ggml_
    arguments: tuple[Argument, ...]
    attaches: bool = False  # it changes a node and returns nothing; its first argument is that node


@dataclass(frozen=True)
class Program:
    """Leaves and calls of one graph."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    over: int | None = None  # the source of the node in whose memory the result lies, as allocators do

    def message(self) -> dict[str, Any]:
        """The program as the library's process receives it."""
        leaves = [[leaf.type, list(leaf.ne)] for leaf in self.leaves]
        steps = [[s.function, [list(a) for a in s.arguments], s.attaches] for s in self.steps]
        return {"leaves": leaves, "steps": steps, "over": self.over}


@dataclass(frozen=True)
class Ran:
    """A node that a device computed, once or several times."""

    node: Node
    repeats: tuple[NDArray[np.uint8], ...] = ()  # the bytes of its result in the other runs
    strays: tuple[Stray, ...] = ()  # memory beside the result that was overwritten
    unwritten: int = 0  # words of the result that nobody wrote

    @classmethod
    def of(cls, facts: dict[str, Any], arrays: Sequence[NDArray[np.uint8]]) -> Ran:
        """The node of an answer: arrays of its sources, of its result, and of that in other runs."""
        names = facts["names"]
        y, *repeats = arrays[len(names) :]
        node = Node(facts["op"], 0, facts["parts"], {**dict(zip(names, arrays, strict=False)), "y": y},
                    tuple(facts["words"]))  # fmt: skip
        strays = tuple(Stray(**stray) for stray in facts["strays"])
        return cls(node, tuple(repeats), strays, facts["unwritten"])


# --- a node of a graph with the arrays of its result and its sources, as they were read -----------

DTYPES = {
    "f32": "<f4", "f16": "<f2", "i32": "<i4", "bf16": "<u2", "f64": "<f8", "i64": "<i8", "i16": "<i2",
    "i8": "i1",
}  # fmt: skip
NAMES = {"MUL_MAT": "wx", "MUL_MAT_ID": "wxi", "FLASH_ATTN_EXT": "qkvms"}  # of sources, by their order


def source_name(op: str, i: int) -> str:
    """The name of an operation's source number i: w, x … of products, s0, s1 … of others."""
    return NAMES[op][i] if op in NAMES else f"s{i}"


def original(name: str) -> str:
    """The name of a weight from that of its copy on a device, such as ``CUDA0#blk.0.attn_q.weight#0``."""
    match = re.fullmatch(r"[^#]*#(.*)#\d+", name)
    return match[1] if match else name


@dataclass(frozen=True)
class Node:
    """The record of a node from the library's process, with its arrays."""

    op: str
    step: int
    tensors: dict[str, dict[str, Any]]  # y, and its operands
    arrays: dict[str, NDArray[np.uint8]]
    words: tuple[int, ...] = ()  # parameters of the operation
    changed: tuple[dict[str, Any], ...] = ()  # of its operands, since they were computed

    @property
    def name(self) -> str:
        """The name of the node, which is that of its result."""
        return str(self.tensors["y"]["name"])

    @property
    def weights(self) -> str:
        """The name of the weights, of K for attention, of the second source of others."""
        name = next((name for name in ("w", "k", "s1", "s0") if name in self.tensors), "y")
        return original(str(self.tensors[name]["name"]))

    def strided(self, part: str) -> NDArray[Any]:
        """An operand of plain numbers as an array [ne3, ne2, ne1, ne0], strided as it is, without a copy."""
        facts, raw = self.tensors[part], self._raw(part)
        if facts["type"] not in DTYPES:
            raise UnsupportedError(f"{facts['name']} is {facts['type']}; plain numbers are read here")
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

    def blocks(self, part: str) -> QuantArray:
        """An operand of blocks with all four axes, in one piece."""
        facts = self.tensors[part]
        raw = np.stack([np.asarray(matrix.raw) for matrix in self.matrices(part)])
        return QuantArray.from_bytes(raw.reshape(-1), FORMATS[facts["type"]], facts["ne"][::-1])

    def operand(self, part: str) -> Any:
        """An operand for an oracle: numbers as they are, bfloat16 as float32, blocks as a QuantArray."""
        kind = self.tensors[part]["type"]
        if kind not in DTYPES:
            return self.blocks(part)
        return self.floats(part) if kind == "bf16" else self.strided(part)
