"""Tensors of equal layers in one line of a table: ``blk.{0-31}.ffn_up.weight``."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

LAYER = re.compile(r"^(.*?\.)(\d+)(\..*)$", re.DOTALL)
RUNS = 4  # of layers that a name shows

T = TypeVar("T")


def groups(
    items: Iterable[T], name: Callable[[T], str], kind: Callable[[T], Hashable], fold: bool = True
) -> list[tuple[str, list[T]]]:
    """Groups of items of one kind with names that differ in the layer's number alone, each under one name.

    A group takes the place of its first item. Without ``fold`` each item is a group.
    """
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for position, item in enumerate(items):
        parts = LAYER.match(name(item))
        if not fold or parts is None or str(int(parts[2])) != parts[2]:  # "01" is no number of a layer
            groups[position] = [(-1, item)]
        else:
            groups.setdefault((parts[1], parts[3], kind(item)), []).append((int(parts[2]), item))
    return [(_name(key, members, name), [item for _, item in members]) for key, members in groups.items()]


def _name(key: Any, members: list[tuple[int, T]], name: Callable[[T], str]) -> str:
    if len(members) == 1:
        return name(members[0][1])
    return f"{key[0]}{{{layers([layer for layer, _ in members])}}}{key[1]}"


def folded(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts of tensors, one entry for those that differ in the layer's number alone.

    Each entry has type and shape, ``tensors`` (the number of its tensors) and ``bytes`` of all of them.
    """
    kind = lambda fact: (fact["type"], tuple(fact["shape"]))
    return [
        {**facts[0], "name": name, "tensors": len(facts), "bytes": sum(fact["bytes"] for fact in facts)}
        for name, facts in groups(tensors, lambda fact: fact["name"], kind)
    ]


def counted(groups: Iterable[tuple[str, list[T]]]) -> Callable[[str | int], list[str]]:
    """A maker of cells "number of tensors"; it makes none where every line is of one tensor."""
    many = any(len(members) > 1 for _, members in groups)
    return lambda cell: [str(cell)] if many else []


def span(numbers: Iterable[float | None], form: str) -> str:
    """The least and the largest of some numbers, or the one that all are; without None."""
    present = [number for number in numbers if number is not None]
    if not present:
        return ""
    low, high = (format(number, form) for number in (min(present), max(present)))
    return low if low == high else f"{low} to {high}"


def layers(numbers: list[int]) -> str:
    """Numbers of layers as text, ``0-3,8`` for [0, 1, 2, 3, 8]; many runs are cut."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ",".join(spans if len(spans) <= RUNS else [*spans[: RUNS - 1], "…", spans[-1]])
