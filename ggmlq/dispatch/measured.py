"""Tables of measured kernels, which order the rungs of a device: ``cpu/choice.json``, ``cuda/choice.json``.

A table has an entry for each card or CPU that was measured. The entry says for a format and a shape up
to which number of rows of activations which rungs are fast, the fastest first:

    {"format": "q4_0", "N": 4096, "K": 14336, "up to": [[22, ["cuda:streamk"]], [null, […]]]}

A problem that was not measured takes the nearest entry:

    format    groups of the same size (16, or 32 and more), offsets or none, the nearest size
    N and K   the nearest number of weights and length of a row, on a log scale
    M         the nearest that was measured, on a log scale

The result is only an order for :mod:`ggmlq.dispatch.ladder`: an entry can make a product slow, never wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..formats import FORMATS, BlockFormat
from .ladder import Problem
from .problems import Linear

Entry = dict[str, Any]


class Preference(NamedTuple):
    """Names of rungs, the fastest first, and the source of that order."""

    kernels: tuple[str, ...]
    why: str


NOTHING = Preference((), "")


def entries(table: Path, what: str) -> list[Entry]:
    """The entries of a table, one for each measured card or CPU; none if the file is missing or damaged."""
    try:
        measured: list[Entry] = json.loads(table.read_text())[what]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return measured


def preference(problem: Problem, entry: Entry, place: str) -> Preference:
    """The order of rungs for a problem by an entry; ``place`` names the card or CPU of the entry."""
    rows = [row for row in entry.get(problem.op, []) if row["format"] in FORMATS]
    if not rows or not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat):
        return NOTHING
    name = stand_in(problem.format, (row["format"] for row in rows))
    row = min((r for r in rows if r["format"] == name), key=lambda r: _apart(problem, r))
    kernels: list[str] = next(
        (names for most, names in row["up to"] if most is None or problem.m <= most), []
    )
    why = f"measured on {place} at {entry['commit']}"
    if name != problem.format.name:
        why += f" with {name}"
    return Preference(tuple(kernels), why)


def stand_in(fmt: BlockFormat, measured: Iterable[str]) -> str:
    """The measured format that is most like this one: itself if it is among them."""

    def unlike(name: str) -> tuple[bool, bool, bool, float]:
        other = FORMATS[name]
        assert isinstance(other, BlockFormat)
        return (
            other is not fmt,
            min(other.group, 32) != min(fmt.group, 32),
            other.has_offset != fmt.has_offset,
            abs(other.bits_per_weight - fmt.bits_per_weight),
        )

    return min(measured, key=unlike)


def _apart(problem: Linear, row: Entry) -> float:
    n, k = max(problem.n, 1), max(problem.k, 1)
    return abs(math.log(n * k / (row["N"] * row["K"]))) + abs(math.log(k / row["K"]))
