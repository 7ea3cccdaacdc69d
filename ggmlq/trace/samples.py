"""Slices of large nodes: a trace that samples reads only these from the library, and judges them.

A slice has one index of an axis: of the outermost one, where each slice of the result follows from the same
slice of its sources. It keeps all other axes whole, so that an error of a tail or a stride shows in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.indices import evenly_spaced
from ..reference.nodes import OPERATIONS

FEW = 8  # slices of a node
LARGE = 1 << 14  # elements from which on a node is cut
ALIGNED = 64
HEADS, ROWS = 1, 1  # axes: ROPE turns each head alike; rows of attention and softmax are independent


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
            cut[name] = _whole(facts)
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
    size = (
        facts["nb"][0] * facts["ne"][0]
        if facts["block"] == 1
        else facts["nb"][0] * (facts["ne"][0] // facts["block"])
    )
    return int(size + sum((facts["ne"][i] - 1) * facts["nb"][i] for i in (1, 2, 3) if i != without))


def _whole(facts: dict[str, Any]) -> Slices:
    size = extent(facts)
    return Slices(facts, [(0, 0, size)], size)


def _cut(facts: dict[str, Any], axis: int, picks: list[int]) -> Slices:
    size = extent(facts, axis)
    pitch = -(-size // ALIGNED) * ALIGNED
    ne, nb = list(facts["ne"]), list(facts["nb"])
    pieces = [(pick * nb[axis], i * pitch, size) for i, pick in enumerate(picks)]
    ne[axis], nb[axis] = len(picks), pitch
    return Slices({**facts, "ne": ne, "nb": nb, "rows": picks}, pieces, pitch * len(picks))
