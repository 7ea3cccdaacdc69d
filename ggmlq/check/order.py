"""The order in which ``--budget`` runs cases: those first that catch most of what no case before catches.

``tools/order_cases.py`` measured it: ``order.json`` has for each operation the cases that catch mistakes
which no case before them catches, and how many. Mistakes are the doctor's imitations, and what bugs of ggml
depended on: types, gaps, axes, lengths that fill no vector, a result over its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from .sketch import OpCase


@cache
def gains() -> dict[str, int]:
    """Mistakes that a case catches and no case before it, by its name; others catch nothing new."""
    table = json.loads(files(__package__).joinpath("order.json").read_text(encoding="utf-8"))
    return {case: gain for cases in table.values() for case, gain in cases}


def ordered(cases: Iterable[OpCase]) -> list[OpCase]:
    """The cases, those with the largest gains first."""
    return sorted(cases, key=lambda case: -gains().get(str(case), 0))


def share(ran: Iterable[str], every: Sequence[str]) -> float:
    """The part of what all these cases catch that those which ran catch."""
    whole = sum(gains().get(name, 0) for name in every)
    return sum(gains().get(name, 0) for name in set(ran)) / whole if whole else 1.0
