"""The callback of a trace: ggml calls it for each node of a graph, and it copies nodes with their sources.

Before each node ggml asks whether we want to see it; if so, it calls again after the node. All nodes from one
yes to the next are computed as one graph: kernels may fuse within it, never across. So the result that is
read after a yes is the one that the node's kernel wrote. Its sources are read then too, but for those over
which it is written: these are copied before the node. ggml asks about all nodes up to the next yes before it
computes the first of them, so the same holds of a group of nodes with a yes at its last. ctypes would swallow
an exception in the callback, and its False would end the graph without a word: so all are caught, and the
first is raised when the run is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.indices import evenly_spaced
from ..llama.library import Symbols, words
from ..llama.program import original, source_name
from ..llama.structs import Tensors
from ..reference.nodes import OPERATIONS
from .fusion import GroupReader
from .libllama import EVAL
from .lifetimes import Lifetimes
from .settings import Asks

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
ATTENTION = "FLASH_ATTN_EXT"
SOURCES = {"MUL_MAT": 2, "MUL_MAT_ID": 3} | {op: one.sources for op, one in OPERATIONS.items()}
FROM_FILE = (*PRODUCTS, "GET_ROWS")  # their first source may be the model's: it is not read from the device
VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # they compute nothing
REMEMBERED = 64  # nodes that the recorder remembers


class Room(Protocol):
    """The memory for arrays, and for records that outlive a crash."""

    def note(self, facts: dict[str, Any]) -> None:
        """Store the facts for the case of a crash."""

    def room(self, lengths: list[int]) -> tuple[list[NDArray[np.uint8]], list[list[int]]]:
        """Arrays of these lengths in bytes, and their places."""


class Tracer:
    """The callback of a graph, as ``.callback`` for C. It calls ``tell`` with a message for each node.

    The arrays of a node are valid until ``tell`` returns. ``counts``: no step is told to it, each begins with
    the same node.
    """

    def __init__(
        self, symbols: Symbols, shared: Room, tell: Callable[[dict[str, Any]], object],
        weights: Collection[str], asks: Asks, *, counts: bool = False,
    ) -> None:  # fmt: skip
        self.asks = asks
        self._before_it: dict[int, NDArray[np.uint8]] = {}  # sources that the next node overwrites
        self._symbols, self._shared, self._tell, self._weights = symbols, shared, tell, set(weights)
        self._tensors = Tensors(symbols)
        self._group = GroupReader(self._tensors, shared, tell, self._weights)
        self.memory = Lifetimes(self._tensors, self._weights) if asks.watches else None
        self._changed: list[dict[str, Any]] = []  # of all that the next node reads
        self._pending: list[dict[str, Any]] = []
        self.step, self.nodes = 0, 0
        self.others: Counter[str] = Counter()  # nodes that compute and that nobody judges, by operation
        self.listing: list[dict[str, Any]] = []  # all nodes, where these are listed
        self.names: dict[str, None] = {}  # of all nodes, where results are read
        self._counts, self._begin = counts, ""
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
        number, self.nodes = self.nodes, self.nodes + 1
        op = words(self._symbols.ggml_op_desc(tensor))
        node = self._tensors.describe(tensor)
        self._begin = self._begin or node["name"]
        if node["name"] == self._begin:
            self.step += self._counts and self.nodes > 1
            if self.memory is not None:
                self.memory.begin()
        sources = [self._tensors.describe(s) for i in range(3) if (s := self._tensors.source(tensor, i))]
        self._pending = [*self._pending[1 - REMEMBERED :], {"op": op, **node, "of": sources}]
        self._shared.note({"step": self.step, "pending": self._pending})
        if self.asks.listed:
            self.listing.append(self._facts(number, op, tensor, node))
            return False
        if self.asks.numbers is not None:
            return self.asks.stops(number)
        if self.asks.results:
            return self._is_result(op, node["name"])
        return self._is_judged(number, op, tensor, node, sources)

    def _is_judged(
        self, number: int, op: str, tensor: int, node: dict[str, Any], sources: list[dict[str, Any]]
    ) -> bool:
        asks = self.asks
        if group := asks.group_of.get(number):
            self._group.add(op, tensor, self.step, last=number == group[-1])
            return number == group[-1]
        shown = self._is_selected(op, node["name"], sources)
        if not shown and op not in VIEWS:
            self.others[op] += 1
        # Where any node may need its sources as they were before it, nothing may wait to be computed.
        here = asks.every or shown or (asks.nodes == "all" and not asks.quiet and op not in VIEWS)
        self._before_it = self._overwritten(op, tensor) if shown and op not in PRODUCTS else {}
        if self.memory is not None and op not in VIEWS:
            self._changed = self.memory.read(op, tensor)
        return here

    def _facts(self, number: int, op: str, tensor: int, node: dict[str, Any]) -> dict[str, Any]:
        """The facts about a node and its place in the graph."""
        sources = self._tensors.sources(tensor)
        return {**node, "number": number, "op": op, "step": self.step, "at": tensor, "of": sources,
                "origin": self._tensors.origin(tensor)}  # fmt: skip

    def _is_result(self, op: str, name: str) -> bool:
        """True for a node whose result is to be read; ``Kcur-0 (view)`` only by its whole name."""
        self.names[name] = None
        if op in VIEWS and name.endswith(")"):
            return name in self.asks.select
        return self.asks.names(name)

    def _sources(self, op: str, tensor: int) -> list[tuple[int, int]]:
        """The number and address of each source that an operation reads."""
        count = SOURCES.get(op, 0)
        return [(i, s) for i in range(count) if (s := self._tensors.source(tensor, i)) and s != tensor]

    def _overwritten(self, op: str, tensor: int) -> dict[int, NDArray[np.uint8]]:
        """Copies of the sources that lie where the node's result will: it is computed in place."""
        span = self._tensors.span(tensor)
        return {
            i: copy for i, source in self._sources(op, tensor)
            if (copy := self._tensors.copy_within(source, [span])) is not None
        }  # fmt: skip

    def _is_selected(self, op: str, node: str, sources: list[dict[str, Any]]) -> bool:
        if op not in SOURCES or self.error is not None or not self.asks.reads:
            return False
        if self.asks.nodes != "all" and op not in (*PRODUCTS, ATTENTION):
            return False
        return self.asks.names(node, *(original(source["name"]) for source in sources[:1]))

    # --- after ----------------------------------------------------------------------------

    def _after(self, tensor: int) -> bool:
        self._pending = []
        op = words(self._symbols.ggml_op_desc(tensor))
        if self.asks.results:
            self._send(op, tensor, [])
        elif self._group:
            if self.asks.names(*self._group.names()) and self.error is None:
                self._group.send()
            else:
                self.others.update(self._group.operations())
            self._group.clear()
        else:
            node = self._tensors.describe(tensor)
            sources = self._sources(op, tensor)
            if self.memory is not None and op not in VIEWS:
                self.memory.wrote(tensor)
            if self._is_selected(op, node["name"], [self._tensors.describe(s) for _, s in sources]):
                self._send(op, tensor, sources)
        self._before_it = {}
        return True

    def _send(self, op: str, tensor: int, sources: list[tuple[int, int]]) -> None:
        parts = {"y": tensor, **{source_name(op, i): s for i, s in sources}}
        facts = {name: self._tensors.describe(at) for name, at in parts.items()}
        copies = {source_name(op, i): copy for i, copy in self._before_it.items()}
        read = [name for name, at in parts.items() if self._to_be_read(op, name, at, facts[name])]
        cut = slices_of(op, {name: facts[name] for name in read}) if self.asks.sample else None
        lengths = [cut[name].length if cut else self._tensors.nbytes(parts[name]) for name in read]
        arrays, places = self._shared.room(lengths)
        for name, array in zip(read, arrays, strict=True):
            self._copy(parts[name], copies.get(name), cut[name] if cut else None, array)
        for name in cut or ():
            facts[name] = cut[name].facts if cut else facts[name]
        self._tell({
            "op": op, "step": self.step, "parts": facts, "places": dict(zip(read, places, strict=True)),
            "words": self._tensors.words(tensor), "changed": self._changed,
        })  # fmt: skip

    def _copy(
        self, tensor: int, before: NDArray[np.uint8] | None, cut: Slices | None, into: NDArray[np.uint8]
    ) -> None:
        """Copy a tensor, or some slices of it, from the device or from a copy of it before its node."""
        for offset, start, size in cut.pieces if cut else [(0, 0, into.size)]:
            if before is None:
                self._tensors.read(tensor, into[start : start + size], offset)
            else:
                into[start : start + size] = before[offset : offset + size]

    def _to_be_read(self, op: str, name: str, tensor: int, facts: dict[str, Any]) -> bool:
        """True for operands to read from the device. Weights are the file's: layouts may be unreadable."""
        first = name == source_name(op, 0)
        from_file = op in FROM_FILE and first and original(facts["name"]) in self._weights
        return not from_file and self._tensors.readable(tensor)


# --- slices of large nodes: a trace that samples reads and judges only these ----------------------
#
# A slice has one index of an axis: of the outermost one, where each slice of the result follows from the same
# slice of its sources. It keeps all other axes whole, so that an error of a tail or a stride shows in it.

FEW = 8  # slices of a node
LARGE = 1 << 14  # elements from which on a node is cut
ALIGNED = 64
HEADS, ROWS = 1, 1  # axes: ROPE rotates each head alike; rows of attention and softmax are independent


@dataclass(frozen=True)
class Slices:
    """The bytes of some slices of a tensor, and the facts about a tensor of these alone."""

    facts: dict[str, Any]
    pieces: list[tuple[int, int, int]]  # offset in the tensor, in the copy, and bytes
    length: int


def slices_of(op: str, parts: dict[str, dict[str, Any]]) -> dict[str, Slices] | None:
    """Slices of the result and the sources of a node; None where it is small, or cannot be cut."""
    ne = parts["y"]["ne"]
    axes = _axes(op, ne)
    if axes is None or ne[0] * ne[1] * ne[2] * ne[3] < LARGE or ne[axes[0]] <= FEW:
        return None
    picks = [int(i) for i in evenly_spaced(ne[axes[0]], FEW)]
    cut = {}
    for name, facts in parts.items():
        axis = axes[0] if name == "y" else axes[1]
        n = facts["ne"][axis]
        if n == 1 or (op == "FLASH_ATTN_EXT" and name in "kvs"):
            cut[name] = Slices(facts, [(0, 0, extent(facts))], extent(facts))
        elif n >= ne[axes[0]] or ne[axes[0]] % n == 0:
            cut[name] = _cut(facts, axis, [p % n if n < ne[axes[0]] else p for p in picks])
        else:
            return None
    return cut


def _axes(op: str, ne: list[int]) -> tuple[int, int] | None:
    """The axis of the result and of its sources that is cut."""
    if op == "FLASH_ATTN_EXT":
        return 2, 1
    if op in ("ROPE", "SOFT_MAX"):
        return ROWS, HEADS
    if op not in OPERATIONS or not OPERATIONS[op].rowwise:
        return None
    axis = max((i for i in range(1, 4) if ne[i] > 1), default=0)
    return (axis, axis) if axis else None


def extent(facts: dict[str, Any], without: int = -1) -> int:
    """Bytes from the first element to the end of the last, perhaps of one index of an axis."""
    size = facts["nb"][0] * (facts["ne"][0] // facts["block"])
    return int(size + sum((facts["ne"][i] - 1) * facts["nb"][i] for i in (1, 2, 3) if i != without))


def _cut(facts: dict[str, Any], axis: int, picks: list[int]) -> Slices:
    size = extent(facts, axis)
    pitch = -(-size // ALIGNED) * ALIGNED
    ne, nb = list(facts["ne"]), list(facts["nb"])
    pieces = [(pick * nb[axis], i * pitch, size) for i, pick in enumerate(picks)]
    ne[axis], nb[axis] = len(picks), pitch
    return Slices({**facts, "ne": ne, "nb": nb, "rows": picks}, pieces, pitch * len(picks))
