"""Finds the groups of nodes that a backend may compute with one kernel, in a list of a graph's nodes.

A kernel may fuse nodes that follow each other, if nothing but the group reads their results; only the last
result leaves it, and of routing the order of the experts too. Which groups a backend really fuses differs by
backend, year and shape. So this is a rule and no list of patterns: it covers a norm with its weights, with
rope and with the row that is written to the cache, products of few rows with a bias, gate and up with their
activation, chains of sums, the routing of experts, caps of logits. A group that is computed by several
kernels is judged all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..reference.nodes import OPERATIONS
from ..reference.nodes.activations import GATES, UNARY

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
    if op in PRODUCTS and (facts["buffer"].startswith("CPU") or _rows(facts) > FEW_ROWS):
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


def _rows(facts: Mapping[str, Any]) -> int:
    ne = facts["ne"]
    return int(ne[1] * ne[2] * ne[3]) if facts["op"] == "MUL_MAT" else int(ne[2] * ne[3])
