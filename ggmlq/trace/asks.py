"""``Asks``: for which nodes of a graph a trace asks the library, and what it does with them.

Nodes of a run are numbered from 0 in the order in which the library asks about them, over all its steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Asks:
    """The nodes for which a run stops.

    ``nodes``: ``"all"`` that have an oracle, or ``"products"`` with attention; those whose names fit a
    pattern of ``select``. ``sample``: only some slices of large nodes are read. ``groups``: numbers of nodes
    that are judged as one; the library is asked for the last of each alone. ``results``: results alone are
    read, of any operation. ``every`` and ``quiet``: stop at every node, read none. ``listed``: stop at none
    and list them. ``numbers``: stop at these ranges of numbers and at no other node, read none.
    """

    nodes: str = "all"
    select: tuple[str, ...] = ()
    sample: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    results: bool = False
    every: bool = False
    quiet: bool = False
    listed: bool = False
    numbers: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, message: dict[str, Any]) -> Asks:
        """The asks that a message holds, where tuples became lists."""
        groups = tuple(map(tuple, message["groups"]))
        numbers = None if message["numbers"] is None else tuple((a, b) for a, b in message["numbers"])
        return cls(**{**message, "select": tuple(message["select"]), "groups": groups, "numbers": numbers})

    def message(self) -> dict[str, Any]:
        """The asks for the library's process."""
        return asdict(self)

    @property
    def reads(self) -> bool:
        """True where nodes are read, not only stopped at."""
        return not (self.quiet or self.listed or self.numbers is not None)

    @cached_property
    def group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of each node that is in one."""
        return {number: group for group in self.groups for number in group}

    def names(self, *names: str) -> bool:
        """True where one of these names is selected."""
        if not self.select:
            return True
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.select)

    def stops(self, number: int) -> bool:
        """True for a node in one of the ranges of ``numbers``."""
        return any(first <= number < last for first, last in self.numbers or ())
