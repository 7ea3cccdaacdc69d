"""Rebuilds nodes that a trace read as a graph of their own, without the functions that made them.

A tensor gets its lengths by ggml's function for new tensors; then the number of the operation, its
parameters, its sources and strides are written into it. So any operation can be repeated, and nodes that one
kernel fused follow each other as they did.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from .graph import IN_PLACE, Graph
from .product import Multiplier
from .structs import Tensors
from .symbols import InitParams, words

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
        size = ROOM * self.symbols.ggml_tensor_overhead() + self.symbols.ggml_graph_overhead()
        self.context = self.symbols.ggml_init(InitParams(size, None, True))
        stack.callback(self.symbols.ggml_free, self.context)
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
            if words(self.symbols.ggml_op_desc(tensor)) == op:
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
