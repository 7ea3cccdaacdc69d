"""Finds the groups of nodes that a backend may compute with one kernel, in a list of a graph's nodes.

A kernel may fuse nodes that follow each other, if nothing but the group reads their results; only the last
result leaves it, and of routing the order of the experts too. Which groups a backend really fuses differs by
backend, year and shape. So this is a rule and no list of patterns: it covers a norm with its weights, with
rope and with the row that is written to the cache, products of few rows with a bias, gate and up with their
activation, chains of sums, the routing of experts, caps of logits. A group that is computed by several
kernels is judged all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..llama.program import Node, original
from ..llama.structs import Tensors
from ..reference.nodes import OPERATIONS
from ..reference.nodes.elementwise import GATES, UNARY

MOST = 12  # nodes of a group
FEW_ROWS = 8  # of a product: kernels for more rows do not fuse
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
ROUTES = ("ARGSORT", "TOP_K")  # their results leave a group of routing
PLAIN = ("f32", "f16", "bf16")
VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
GATED = {*GATES, "SWIGLU_OAI"}
ELEMENTWISE = {"ADD", "ADD_ID", "SUB", "MUL", "DIV", "SCALE", "CLAMP", "SQR", "SQRT"} | GATED | {*UNARY}
JOINS = {*ELEMENTWISE, "ROPE", "SET_ROWS", "GET_ROWS", "SUM_ROWS", *ROUTES}  # may read what the group made
HEADS = {*PRODUCTS, "RMS_NORM", "NORM", "L2_NORM", "SSM_CONV", "SOFT_MAX"}  # read what was there before


@dataclass(frozen=True)
class Place:
    """A node of a graph, and the numbers of the nodes that read its result, perhaps through a view."""

    facts: Mapping[str, Any]
    readers: frozenset[int]

    @property
    def number(self) -> int:
        """Its number in the run."""
        return int(self.facts["number"])

    @property
    def op(self) -> str:
        """The name of its operation, as ggml has it."""
        return str(self.facts["op"])


def groups_of(listing: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """Groups of two nodes or more, by their numbers, of a run's list of nodes."""
    groups: list[tuple[int, ...]] = []
    steps: dict[int, list[Mapping[str, Any]]] = {}
    for facts in listing:
        steps.setdefault(facts["step"], []).append(facts)
    for graph in steps.values():
        groups += _of_graph(graph)
    return tuple(groups)


def _of_graph(graph: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    places = _places(graph)
    by_number = {place.number: place for place in places}
    groups, last = list[tuple[int, ...]](), len(places) - 1
    while last > 0:
        members = [places[last]]
        if places[last].op in JOINS:
            at = last - 1
            while at >= 0 and len(members) < MOST and _joins(places[at], members, by_number):
                members.insert(0, places[at])
                at -= 1
        if len(members) > 1:
            groups.insert(0, tuple(place.number for place in members))
        last -= len(members)
    return groups


def _places(graph: Sequence[Mapping[str, Any]]) -> list[Place]:
    """The nodes that compute something, in their order, with the readers of each."""
    readers: dict[int, set[int]] = {}
    maker: dict[int, int] = {}  # number of the node that wrote at an address
    views = {facts["at"]: facts["origin"] for facts in graph if facts["origin"]}
    for facts in graph:
        if facts["op"] in VIEWS:
            continue
        for source in facts["of"]:
            number = maker.get(source, maker.get(views.get(source, 0), -1))
            readers.setdefault(number, set()).add(facts["number"])
        maker[facts["at"]] = facts["number"]
    computed = [facts for facts in graph if facts["op"] not in VIEWS]
    return [Place(facts, frozenset(readers.get(facts["number"], ()))) for facts in computed]


def _joins(place: Place, members: Sequence[Place], by_number: Mapping[int, Place]) -> bool:
    """True where a node may be the first of a group."""
    op, facts, last = place.op, place.facts, members[-1].facts
    inside = place.readers & {member.number for member in members}
    if op not in JOINS | HEADS or (op not in OPERATIONS and op not in PRODUCTS) or not inside:
        return False
    if inside != place.readers and op not in ROUTES:
        return False
    if any(not _may_read(by_number[reader], op) for reader in inside):
        return False
    ne = facts["ne"]
    rows = ne[2] * ne[3] * (ne[1] if op == "MUL_MAT" else 1)
    if op in PRODUCTS and (facts["buffer"].startswith("CPU") or rows > FEW_ROWS):
        return False
    if facts["origin"]:  # its result lies in memory that others may read
        return False
    return bool(facts["buffer"] == last["buffer"] and facts["type"] in (*PLAIN, "i32"))


def _may_read(reader: Place, op: str) -> bool:
    """True where a node may be fused with one whose result it reads."""
    if op == "GET_ROWS":  # the weights of the chosen experts
        return reader.op in ("SUM_ROWS", "DIV", "SCALE", "SOFT_MAX")
    if reader.op == "GET_ROWS":
        return op in (*ROUTES, "SOFT_MAX", *UNARY)
    if reader.op in (*ROUTES, "SUM_ROWS"):
        return op in ("SOFT_MAX", "ADD", "GET_ROWS", *UNARY)
    return reader.op in JOINS and (reader.op != "SET_ROWS" or reader.facts["type"] in PLAIN)


# --- a group: its last result, and all that it reads ----------------------------------------------
#
# The library asks about every node of a group before it computes the first, if the node before the group was
# answered with yes. At the last one of them the sources are as they were, and those over which the group
# writes are copied.

COUNTS = {"MUL_MAT": 2, "MUL_MAT_ID": 3}


@dataclass(frozen=True)
class Group(Node):
    """Nodes that are judged as one; the tensors are the last result ``y`` and what the group reads.

    Each member is its operation, the facts about its result, its parameters, and its sources: the name of a
    tensor, or the number of another member with the facts and the offset of the view that is read.
    """

    members: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class _Member:
    op: str
    at: int  # of its tensor


class GroupReader:
    """Collects the members of one group, and sends the group once it was computed."""

    def __init__(
        self, tensors: Tensors, shared: Any, tell: Callable[[dict[str, Any]], object],
        weights: Collection[str],
    ) -> None:  # fmt: skip
        self._tensors, self._shared, self._tell, self._weights = tensors, shared, tell, weights
        self._members: list[_Member] = []
        self._step = 0
        self._copies: dict[int, NDArray[np.uint8]] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def clear(self) -> None:
        """Begin a new group."""
        self._members, self._copies = [], {}

    def operations(self) -> list[str]:
        """The operation of each member."""
        return [member.op for member in self._members]

    def names(self) -> list[str]:
        """Names of the members, and of the first source of each."""
        every = [m.at for m in self._members]
        every += [s for at in every if (s := self._tensors.source(at, 0))]
        return [original(self._tensors.describe(at)["name"]) for at in every]

    def add(self, op: str, tensor: int, step: int, *, last: bool) -> None:
        """A member about which the library asks; at the last one nothing of the group is computed yet."""
        self._members.append(_Member(op, tensor))
        self._step = step
        if last:
            spans = [self._tensors.span(member.at) for member in self._members]
            for source in self._outside():
                copy = self._tensors.copy_within(source, spans)
                if copy is not None:
                    self._copies[source] = copy

    def _sources(self, member: _Member) -> list[int]:
        count = COUNTS[member.op] if member.op in COUNTS else OPERATIONS[member.op].sources
        return [self._tensors.source(member.at, i) for i in range(count)]

    def _inside(self, source: int) -> int | None:
        """The number of the member whose result this is, perhaps through a view."""
        places = [member.at for member in self._members]
        for at in (source, self._tensors.origin(source)):
            if at in places:
                return places.index(at)
        return None

    def _outside(self) -> list[int]:
        """Every tensor that the group reads and does not make, each once."""
        sources = [s for m in self._members for s in self._sources(m) if s and self._inside(s) is None]
        return list(dict.fromkeys(sources))

    def send(self) -> None:
        """Send the last result of the group, orders of experts, and all that it read."""
        parts = {"y": self._members[-1].at}
        parts |= {f"o{i}": m.at for i, m in enumerate(self._members[:-1]) if m.op in ROUTES}
        outside = {source: f"e{i}" for i, source in enumerate(self._outside())}
        parts |= {name: source for source, name in outside.items()}
        facts = {name: self._tensors.describe(at) for name, at in parts.items()}
        read = [name for name, at in parts.items() if self._to_be_read(at, facts[name])]
        arrays, places = self._shared.room([self._tensors.nbytes(parts[name]) for name in read])
        for name, array in zip(read, arrays, strict=True):
            before = self._copies.get(parts[name]) if name[0] == "e" else None
            if before is None:
                self._tensors.read(parts[name], array)
            else:
                array[:] = before
        members = [self._described(member, outside) for member in self._members]
        self._tell({
            "op": "+".join(member.op for member in self._members), "step": self._step, "parts": facts,
            "places": dict(zip(read, places, strict=True)), "words": [], "members": members,
        })  # fmt: skip

    def _described(self, member: _Member, outside: dict[int, str]) -> dict[str, Any]:
        sources: list[Any] = []
        for source in self._sources(member):
            if not source:
                sources.append(None)
            elif source in outside:
                sources.append(outside[source])
            else:
                number = self._inside(source)
                assert number is not None
                start = self._tensors.span(self._members[number].at)[0]
                offset = self._tensors.span(source)[0] - start
                facts = self._tensors.describe(source)
                sources.append({"member": number, "ne": facts["ne"], "nb": facts["nb"], "offset": offset})
        return {"op": member.op, "facts": self._tensors.describe(member.at), "sources": sources,
                "words": self._tensors.words(member.at)}  # fmt: skip

    def _to_be_read(self, tensor: int, facts: dict[str, Any]) -> bool:
        """True for what is read from the device; weights of products are the file's."""
        multiplied = [self._tensors.source(m.at, 0) for m in self._members if m.op in (*PRODUCTS, "GET_ROWS")]
        if tensor in multiplied and original(facts["name"]) in self._weights:
            return False
        return self._tensors.readable(tensor)
