"""Which rungs are fast for a problem: what was measured, in choice.json, and how far that reaches.

``tools/choice_table.py`` writes the file from the results of ``bench/bench_engine.py``. It says for
a card, a format and a shape up to which number of rows of activations which rungs are fast, the
fastest first:

    {"format": "q4_0", "N": 4096, "K": 14336, "up to": [[22, ["cuda:streamk"]], [null, […]]]}

What was not measured takes what is nearest to it:

    card      the nearest capability, then the same name, then the nearest number of multiprocessors
    format    groups of the same size (16, or 32 and more), offsets or none, the nearest size
    N and K   the nearest number of weights and length of a row, on a log scale
    M         the nearest that was measured, on a log scale

GPUs before 8.0 refuse all that the table names; of the rest dp4a is ahead up to 64 rows, in
bench/results/ladder_h200.json, and registers above that.

Only an order comes of it, which :mod:`ggmlq.ladder` goes through: no entry can be wrong, only slow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DeviceError, MissingDependencyError
from ..formats import FORMATS, BlockFormat
from ..ladder import Problem
from .machine import device

SPARE = ((64, "cuda:dp4a"), (None, "cuda:registers"))  # up to which number of rows which rung
TABLE = Path(__file__).with_name("choice.json")


class Card(NamedTuple):
    """What tells cards apart."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int


class Preference(NamedTuple):
    """Names of rungs, the fastest first, and where that comes from."""

    kernels: tuple[str, ...]
    why: str


NOTHING = Preference((), "")


def card() -> Card | None:
    """CuPy's current device; None where there is no GPU."""
    try:
        return _card(device.current())
    except (MissingDependencyError, DeviceError):
        return None


@cache
def _card(index: int) -> Card:
    facts = device.describe()[index]
    major, minor = facts["compute_capability"].split(".")
    return Card(facts["name"], (int(major), int(minor)), facts["multiprocessors"])


@cache
def table() -> list[dict[str, Any]]:
    """The cards that were measured; none where the file is missing or damaged."""
    try:
        cards: list[dict[str, Any]] = json.loads(TABLE.read_text())["cards"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return cards


def preference(problem: Problem, card: Card | None) -> Preference:
    """The order of rungs for a problem on a card; without one, on the first of the table."""
    nearest = _nearest(card)
    rows = [row for row in nearest.get(problem.op, []) if row["format"] in FORMATS]
    if not rows or not isinstance(problem.format, BlockFormat):
        return NOTHING
    name = stand_in(problem.format, (row["format"] for row in rows))
    row = min((r for r in rows if r["format"] == name), key=lambda r: _apart(problem, r))
    kernels: list[str] = next(
        (found for most, found in row["up to"] if most is None or problem.m <= most), []
    )
    why = f"measured on {nearest['card']} at {nearest['commit']}"
    if name != problem.format.name:
        why += f" with {name}"
    if card is not None and nearest["card"] not in card.name:
        why += ", the nearest card"
    if card is not None and card.capability < (8, 0):
        kernels = [*kernels, next(name for most, name in SPARE if most is None or problem.m <= most)]
    return Preference(tuple(kernels), why)


def formats(card: Card | None) -> list[str]:
    """The formats that were measured on the card that stands for this one."""
    return list(dict.fromkeys(row["format"] for row in _nearest(card).get("linear", [])))


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


def _nearest(card: Card | None) -> dict[str, Any]:
    known = table()
    if card is None or not known:
        return known[0] if known else {}
    return min(known, key=lambda entry: _distance(card, entry))


def _distance(card: Card, entry: dict[str, Any]) -> tuple[int, bool, int]:
    (major, minor), (here, below) = entry["capability"], card.capability
    return (
        abs(10 * (major - here) + minor - below),
        entry["card"] not in card.name,
        abs(entry["multiprocessors"] - card.multiprocessors),
    )


def _apart(problem: Problem, row: dict[str, Any]) -> float:
    n, k = max(problem.n, 1), max(problem.k, 1)
    return abs(math.log(n * k / (row["N"] * row["K"]))) + abs(math.log(k / row["K"]))
