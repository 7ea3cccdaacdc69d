"""``run_program``: builds a graph of a ``Program`` in the library's process, computes it, and reads its node.

Beside the node the graph has another that takes all threads, where the device computes sums: some kernels
are right alone, where ggml runs one thread, and wrong among others. Guards lie around every tensor, and the
result is filled with NaNs of our own before each run, so that what a kernel leaves out or writes beside its
result shows.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..formats import FORMATS
from .guards import UNWRITTEN, Arena, Stray
from .library import BOOL, FLOAT, INT, LONG, SIZE, P, words
from .product import COMPUTE, Multiplier, Pool, compute
from .program import source_name
from .structs import Tensors

Bytes = NDArray[np.uint8]
C_TYPES: dict[str, Any] = {"t": P, "n": P, "I": P, "i": INT, "l": LONG, "f": FLOAT, "z": SIZE, "b": BOOL}
MANY = 128  # tensors of a context, guards among them
OTHERS = (64, 16)  # lengths of the node that takes all threads
MOST_SOURCES = 8
ONCE = {  # functions that libraries of earlier years have under another name
    "rope_ext_back": "rope_back", "conv_2d_dw_direct": "conv_2d_dw", "interpolate": "upscale_ext",
}  # fmt: skip
IN_PLACE = {"SET_ROWS": 2, "CPY": 1}  # operations that write into one of their sources


@dataclass(frozen=True)
class Settings:
    """The settings of the runs of one graph."""

    threads: int = 1
    repeats: int = 1
    pool: tuple[int, ...] = ()  # threads of run after run, which one pool has


class Graph:
    """The tensors of a program in a context of ggml."""

    def __init__(self, m: Multiplier, tensors: Tensors, stack: ExitStack, program: dict[str, Any]) -> None:
        self.symbols, self.look = m.symbols, tensors
        self.context = m.context(stack, MANY)
        self.leaves = [self._leaf(kind, ne) for kind, ne in program["leaves"]]
        self.all = list(self.leaves)
        for name, arguments, attaches in program["steps"]:
            result = self._call(name, arguments, attaches)
            if not attaches:
                self.all.append(result)
        self.node = self.all[-1]
        over = program["over"]
        self.under = 0 if over is None else self.look.source(self.node, over)  # memory that the result gets
        self.others = self._neighbour(m)

    def _neighbour(self, m: Multiplier) -> list[int]:
        """A sum that takes all threads, behind its two sources; nothing where the device computes no sums."""
        other = [self._leaf("f32", OTHERS) for _ in range(2)]
        busy = int(self.symbols.ggml_add(self.context, *other))
        return [*other, busy] if m.takes_op(busy) else []

    def ask(self, m: Multiplier) -> None:
        """Raise an error for what the device says it does not compute: the node, or one before it."""
        before = [t for t in self.all[:-1] if t not in self.leaves and not self.look.origin(t)]
        for tensor in (self.node, *before):
            if not m.takes_op(tensor):
                desc = words(self.symbols.ggml_op_desc(tensor))
                raise UnsupportedError(f"{desc}: {m.handle.device.name} does not compute such tensors")

    def _leaf(self, kind: str, ne: Any) -> int:
        lengths = [*ne, 1, 1, 1][:4]
        return int(self.symbols.ggml_new_tensor_4d(self.context, FORMATS[kind].id, *lengths))

    def _call(self, name: str, arguments: list[Any], attaches: bool) -> int:
        kinds: list[Any] = [] if attaches else [P]
        values: list[Any] = [] if attaches else [self.context]
        for kind, value in arguments:
            kinds.append(C_TYPES[kind])
            values.append(self._argument(kind, value))
        names = [f"ggml_{one}" for one in (name, ONCE.get(name)) if one]
        if not any(map(self.symbols.has, names)):
            raise UnsupportedError(f"{' or '.join(names)}: this library has no such function")
        function = getattr(self.symbols, next(filter(self.symbols.has, names)))
        typed = ctypes.CFUNCTYPE(None if attaches else P, *kinds)(ctypes.cast(function, P).value or 0)
        return int(typed(*values) or 0)

    def _argument(self, kind: str, value: Any) -> Any:
        if kind == "I":
            return ctypes.cast((INT * len(value))(*value), P)
        return self.all[value] if kind == "t" else None if kind == "n" else value

    def owners(self) -> list[int]:
        """Tensors with memory of their own, the node last where it has some; views have that of others."""
        inner = [t for t in self.all[:-1] if not self.look.origin(t)]
        last = [self.node] if not (self.look.origin(self.node) or self.under) else []
        return [*self.others, *inner, *last]

    def sources(self) -> list[tuple[int, int]]:
        """Number and address of each source of the node; of one that is left out, where it lies."""
        pairs = [(i, self.look.source(self.node, i)) for i in range(MOST_SOURCES)]
        into = IN_PLACE.get(words(self.symbols.ggml_op_desc(self.node)))
        if into is not None and not pairs[into][1]:  # SET_ROWS of June to September 2025
            under = self.look.origin(self.node)
            if under and self.look.describe(under)["ne"] == self.look.describe(self.node)["ne"]:
                pairs[into] = (into, under)
        return [(i, s) for i, s in pairs if s in self.all and s != self.node]

    def is_input(self, tensor: int) -> bool:
        """True for a leaf, and for what looks at one."""
        origin = self.look.origin(tensor) or tensor
        return origin in self.leaves


def run_program(
    m: Multiplier, tensors: Tensors, program: dict[str, Any], arrays: list[Bytes], how: Settings,
    kind: type[Graph] = Graph,
) -> tuple[dict[str, Any], list[Bytes]]:  # fmt: skip
    """The facts about the node and its runs; the arrays of its sources, of its result, and of repeats."""
    s = m.symbols
    with ExitStack() as stack:
        graph = kind(m, tensors, stack, program)
        graph.ask(m)
        m.set_threads(how.threads)
        owners = graph.owners()
        names = {f"t{i}": tensor for i, tensor in enumerate(owners)}
        op = words(s.ggml_op_desc(graph.node))
        arena = Arena(stack, s, graph.context, m.buffer_kind, COMPUTE, names, op)
        if graph.under:
            tensors.settle(graph.node, graph.under)
        for tensor in graph.all:
            if tensors.origin(tensor):
                s.ggml_backend_view_init(tensor)
        where = {tensor: name for name, tensor in names.items()}
        inputs = {where[leaf]: array for leaf, array in zip(graph.leaves, arrays, strict=True)}
        filled = dict(inputs)
        if graph.node in where:
            unwritten = np.array([UNWRITTEN], np.uint32).view(np.uint8)
            filled[where[graph.node]] = np.resize(unwritten, tensors.nbytes(graph.node))
        spare = np.ones(OTHERS[::-1], np.float32).view(np.uint8)
        filled |= {where[t]: spare for t in graph.others[:2]}
        cgraph = s.ggml_new_graph(graph.context)
        for tensor in (*graph.others[2:], graph.node):
            s.ggml_build_forward_expand(cgraph, tensor)
        results, sources = list[Bytes](), dict[str, Bytes]()
        overrun: Stray | None = None
        written = (tensors.origin(graph.node) or 0, graph.under)  # leaves into which the node writes
        untouched = {k: v for k, v in inputs.items() if names[k] not in written}
        pool = Pool(m, stack, how.pool) if how.pool else None
        for _ in range(how.repeats):
            arena.fill(filled)
            sources |= _read(graph, [p for p in graph.sources() if graph.is_input(p[1])])
            if pool is not None:
                pool.compute(cgraph)
            else:
                overrun = compute(m, cgraph, how.threads, op) or overrun
            sources |= _read(graph, [p for p in graph.sources() if not graph.is_input(p[1])])
            y = np.empty(tensors.nbytes(graph.node), np.uint8)
            tensors.read(graph.node, y)
            results.append(y)
            arena.look(untouched)
        return _answer(graph, sources, results, arena.strays + ([overrun] if overrun else []))


def is_taken(m: Multiplier, tensors: Tensors, program: dict[str, Any], kind: type[Graph] = Graph) -> bool:
    """True where a device says that it computes all nodes of a program; nothing is computed."""
    with ExitStack() as stack:
        try:
            kind(m, tensors, stack, program).ask(m)
        except UnsupportedError:
            return False
        return True


def op_of(m: Multiplier, tensors: Tensors, program: dict[str, Any], kind: type[Graph] = Graph) -> str:
    """The library's name of the operation of a program's node."""
    with ExitStack() as stack:
        return words(m.symbols.ggml_op_desc(kind(m, tensors, stack, program).node))


def _read(graph: Graph, pairs: list[tuple[int, int]]) -> dict[str, Bytes]:
    op, arrays = words(graph.symbols.ggml_op_desc(graph.node)), {}
    for i, tensor in pairs:
        arrays[source_name(op, i)] = array = np.empty(graph.look.nbytes(tensor), np.uint8)
        graph.look.read(tensor, array)
    return arrays


def _answer(
    graph: Graph, sources: dict[str, Bytes], results: list[Bytes], strays: list[Stray]
) -> tuple[dict[str, Any], list[Bytes]]:
    op = words(graph.symbols.ggml_op_desc(graph.node))
    parts = {"y": graph.look.describe(graph.node)}
    parts |= {source_name(op, i): graph.look.describe(s) for i, s in graph.sources()}
    first = results[0]
    count = 0
    if parts["y"]["type"] in ("f32", "i32"):
        count = int(np.count_nonzero(first[: first.size // 4 * 4].view(np.uint32) == UNWRITTEN))
    facts = {
        "op": op, "parts": parts, "words": list(graph.look.words(graph.node)), "names": list(sources),
        "unwritten": count, "strays": [asdict(stray) for stray in strays],
    }  # fmt: skip
    return facts, [*sources.values(), *results]


# --- nodes that a trace read, as a graph of their own ------------------------------------------------
#
# They are rebuilt without the functions that made them: a tensor gets its lengths by ggml's function for new
# tensors; then the number of the operation, its parameters, its sources and strides are written into it. So
# any operation can be repeated, and nodes that one kernel fused follow each other as they did.

ROOM = 256  # tensors of a context, guards among them


@dataclass(frozen=True)
class Recorded:
    """Tensors that nodes read, by name, and the nodes in their order, as a trace describes them.

    A node has ``op``, ``facts`` about its result, ``words``, and ``sources``: the name of a tensor, None, or
    the number of a node before it with the lengths, strides and offset of the view that is read.
    """

    leaves: dict[str, dict[str, Any]]
    nodes: tuple[dict[str, Any], ...]

    def message(self) -> dict[str, Any]:
        """The nodes as the library's process receives them."""
        return {"leaves": list(self.leaves.values()), "names": list(self.leaves), "nodes": list(self.nodes)}


class RecordedGraph(Graph):
    """The tensors of recorded nodes in a context of ggml."""

    def __init__(self, m: Multiplier, tensors: Tensors, stack: ExitStack, program: dict[str, Any]) -> None:
        self.symbols, self.look, self.under = m.symbols, tensors, 0
        self.context = m.context(stack, ROOM)
        self.leaves = [self._strided(facts) for facts in program["leaves"]]
        self.all = list(self.leaves)
        self._by_name = dict(zip(program["names"], self.leaves, strict=True))
        self._nodes: list[int] = []
        for node in program["nodes"]:
            self._nodes.append(self._made_as(node))
            self.all.append(self._nodes[-1])
        self.node = self.all[-1]
        self.others = self._neighbour(m)

    def _strided(self, facts: dict[str, Any]) -> int:
        tensor = self._leaf(facts["type"], facts["ne"])
        self.look.set_strides(tensor, facts["nb"])
        return tensor

    def _made_as(self, node: dict[str, Any]) -> int:
        """The tensor of a node, with the operation, parameters and sources that it had."""
        op, facts = node["op"], node["facts"]
        sources = [self._source(source) for source in node["sources"]]
        into = sources[IN_PLACE[op]] if op in IN_PLACE and len(sources) > IN_PLACE[op] else 0
        if into:
            tensor = int(self.symbols.ggml_view_tensor(self.context, into))
        else:
            tensor = self._leaf(facts["type"], facts["ne"])
        # Libraries of other years number their operations otherwise; older ones have fewer.
        for number in range(facts["number"], 0, -1):
            self.look.become(tensor, number, node["words"], sources)
            if op in ("", words(self.symbols.ggml_op_desc(tensor))):  # "": whatever has that number
                return tensor
        raise UnsupportedError(
            f"{facts['name']} = {op}: this library has no such operation up to number {facts['number']}; "
            "replay it with a library of the year in which it was traced"
        )

    def _source(self, source: Any) -> int:
        if source is None:
            return 0
        if isinstance(source, str):
            return int(self._by_name[source])
        base = int(self._nodes[source["member"]])
        facts = self.look.describe(base)
        if (facts["ne"], facts["nb"], source["offset"]) == (source["ne"], source["nb"], 0):
            return base
        view = int(
            self.symbols.ggml_view_4d(self.context, base, *source["ne"], *source["nb"][1:], source["offset"])
        )
        self.look.set_strides(view, source["nb"])
        self.all.append(view)
        return view
