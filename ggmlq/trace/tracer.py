"""The callback of a trace: ggml calls it for each node of a graph, and it copies the products.

Before each node ggml asks whether we want to see it; if so, it calls again after the node. All nodes from one
yes to the next are computed as one graph: kernels may fuse within it, never across. So the result that is
read after a yes is the one that the node's kernel wrote, and its operands are still as they were. ctypes
would swallow an exception in the callback, and its False would end the graph without a word: so all are
caught, and the first is raised when the run is over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..llama.symbols import Symbols, words
from .libllama import EVAL
from .structs import Tensors

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
ATTENTION = "FLASH_ATTN_EXT"
OPERANDS = {"MUL_MAT": "wx", "MUL_MAT_ID": "wxi", ATTENTION: "qkvms"}  # by the order of their sources
VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # they compute nothing
REMEMBERED = 64  # nodes that the recorder remembers


def original(name: str) -> str:
    """The name of a weight from that of its copy on a device, such as ``CUDA0#blk.0.attn_q.weight#0``."""
    match = re.fullmatch(r"[^#]*#(.*)#\d+", name)
    return match[1] if match else name


class Room(Protocol):
    """The memory for arrays, and for records that outlive a crash."""

    def note(self, facts: dict[str, Any]) -> None:
        """Store the facts for the case of a crash."""

    def room(self, lengths: list[int]) -> tuple[list[NDArray[np.uint8]], list[list[int]]]:
        """Arrays of these lengths in bytes, and their places."""


class Tracer:
    """The callback of a graph, as ``.callback`` for C. It calls ``tell`` with a message for each product.

    The arrays of a product are valid until ``tell`` returns.
    """

    def __init__(
        self, symbols: Symbols, shared: Room, tell: Callable[[dict[str, Any]], object],
        weights: Collection[str], *, select: Collection[str] = (), every: bool = False, quiet: bool = False,
        counts: bool = False,
    ) -> None:  # fmt: skip
        self._symbols, self._shared, self._tell = symbols, shared, tell
        self._weights, self._select, self._every, self._quiet = set(weights), list(select), every, quiet
        self._tensors = Tensors(symbols)
        self._pending: list[dict[str, Any]] = []
        self.step, self.nodes = 0, 0
        self.others: Counter[str] = Counter()  # nodes that compute and that nobody judges, by operation
        self._counts, self._begin = counts, ""  # where no step is told: each begins with the same node
        self.error: BaseException | None = None
        self.off = False  # True once no node is to be traced any more
        self.callback = EVAL(self._on_node)  # kept here: C holds no reference

    def _on_node(self, tensor: int, ask: bool, _: int) -> bool:
        if self.off:
            return not ask
        try:
            return self._before(tensor) if ask else self._after(tensor)
        except BaseException as error:
            self.error = self.error or error
            return True

    # --- before ---------------------------------------------------------------------------

    def _before(self, tensor: int) -> bool:
        self.nodes += 1
        op = words(self._symbols.ggml_op_desc(tensor))
        node = self._tensors.describe(tensor)
        if self._counts:
            self._begin = self._begin or node["name"]
            self.step += node["name"] == self._begin and self.nodes > 1
        sources = [self._tensors.describe(s) for i in range(3) if (s := self._tensors.source(tensor, i))]
        self._pending = [*self._pending[1 - REMEMBERED :], {"op": op, **node, "of": sources}]
        self._shared.note({"step": self.step, "pending": self._pending})
        shown = self._is_selected(op, node["name"], sources)
        if not shown and op not in VIEWS:
            self.others[op] += 1
        return self._every or shown

    def _is_selected(self, op: str, node: str, sources: list[dict[str, Any]]) -> bool:
        if op not in OPERANDS or self.error is not None or self._quiet:
            return False
        if not self._select:
            return True
        names = [node, *(original(source["name"]) for source in sources[:1])]
        return any(fnmatchcase(name, pattern) for name in names for pattern in self._select)

    # --- after ----------------------------------------------------------------------------

    def _after(self, tensor: int) -> bool:
        self._pending = []
        op = words(self._symbols.ggml_op_desc(tensor))
        node = self._tensors.describe(tensor)
        sources = [(i, s) for i in range(len(OPERANDS.get(op, ""))) if (s := self._tensors.source(tensor, i))]
        if self._is_selected(op, node["name"], [self._tensors.describe(s) for _, s in sources]):
            parts = {OPERANDS[op][i]: s for i, s in sources}
            self._send(op, {"y": tensor, **parts})
        return True

    def _send(self, op: str, parts: dict[str, int]) -> None:
        facts = {name: self._tensors.describe(at) for name, at in parts.items()}
        read = [name for name, at in parts.items() if self._to_be_read(op, name, at, facts[name])]
        arrays, places = self._shared.room([self._tensors.nbytes(parts[name]) for name in read])
        for name, array in zip(read, arrays, strict=True):
            self._tensors.read(parts[name], array)
        message = {
            "op": op,
            "step": self.step,
            "parts": facts,
            "places": dict(zip(read, places, strict=True)),
        }
        if op == ATTENTION:
            message["scales"] = self._tensors.scales(parts["y"])
        self._tell(message)

    def _to_be_read(self, op: str, name: str, tensor: int, facts: dict[str, Any]) -> bool:
        """True for operands to read from the device. Weights are the file's: layouts may be unreadable."""
        from_file = op in PRODUCTS and name == "w" and original(facts["name"]) in self._weights
        return not from_file and self._tensors.readable(tensor)
