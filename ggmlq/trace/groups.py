"""Reads a group of nodes that may be computed by one kernel: its last result, and all that it reads.

The library asks about every node of a group before it computes the first, if the node before the group was
answered with yes. At the last one of them the sources are as they were, and those over which the group
writes are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..llama.captured import Node, original
from ..llama.structs import Tensors
from ..reference.nodes import OPERATIONS
from .fusion import PRODUCTS, ROUTES

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
        self,
        tensors: Tensors,
        shared: Any,
        tell: Callable[[dict[str, Any]], object],
        weights: Collection[str],
    ) -> None:
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
