"""Which rungs are fast for a problem on a card: what was measured, in choice.json, and how far it reaches.

``tools/choice_table.py`` writes the file from the results of ``bench/bench_engine.py``;
:mod:`ggmlq.measured` says how it is read. For a card that was not measured stands the one of the
nearest capability, then of the same name, then of the nearest number of multiprocessors.

GPUs before 8.0 refuse all that the table names; of the rest dp4a is ahead up to 64 rows, in
bench/results/ladder_h200.json, and registers above that.

Only an order comes of it, which :mod:`ggmlq.ladder` goes through: no entry can be wrong, only slow.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from .. import measured
from ..card import Card
from ..ladder import Problem
from ..measured import NOTHING, Entry, Preference
from ..problems import Linear, ScaledLinear
from .machine import device

SPARE = ((64, "cuda:dp4a"), (None, "cuda:registers"))  # up to which number of rows which rung
HOPPER, FEWEST = (9, 0), 64  # rows of x up to which weights are the first operand
TABLE = Path(__file__).with_name("choice.json")


def card() -> Card | None:
    """CuPy's current device; None where there is no GPU."""
    return device.card()


@cache
def table() -> list[Entry]:
    """The cards that were measured."""
    return measured.entries(TABLE, "cards")


def preference(problem: Problem) -> Preference:
    """The order of rungs for a problem on its card; without one, on the first of the table."""
    card, nearest = problem.card, _nearest(problem.card)
    if isinstance(problem, ScaledLinear):
        return _estimated(problem)
    found = measured.preference(problem, nearest, nearest.get("card", ""))
    if found is NOTHING or card is None:
        return found
    kernels, why = found
    if nearest["card"] not in card.name:
        why += ", the nearest card"
    if card.capability < (8, 0) and isinstance(problem, Linear):
        kernels = (*kernels, next(name for most, name in SPARE if most is None or problem.m <= most))
    return Preference(kernels, why)


def _estimated(problem: ScaledLinear) -> Preference:
    """Of products of codes with scales: what pipeline/pace.py thinks of the rungs that Hopper has."""
    if problem.card is None or problem.card.capability != HOPPER or not min(problem.m, problem.n, problem.k):
        return NOTHING
    from .pipeline import pace  # its kernels want numba-cuda, which a list of choices does not

    shape = pace.Shape(problem.m, problem.n, problem.k, problem.card.multiprocessors)
    few = problem.m <= FEWEST
    narrow = ("cuda:few_rows", pace.few_rows(shape).us) if few else ("cuda:divided", pace.divided(shape).us)
    us = dict([narrow, ("cuda:persistent", pace.persistent(shape).us)])
    return Preference(tuple(sorted(us, key=us.__getitem__)), "estimated from its shape")


def formats(card: Card | None) -> list[str]:
    """The formats that were measured on the card that stands for this one."""
    return list(dict.fromkeys(row["format"] for row in _nearest(card).get("linear", [])))


def _nearest(card: Card | None) -> Entry:
    known = table()
    if card is None or not known:
        return known[0] if known else {}
    return min(known, key=lambda entry: _distance(card, entry))


def _distance(card: Card, entry: Entry) -> tuple[int, bool, int]:
    (major, minor), (here, below) = entry["capability"], card.capability
    return (
        abs(10 * (major - here) + minor - below),
        entry["card"] not in card.name,
        abs(entry["multiprocessors"] - card.multiprocessors),
    )
