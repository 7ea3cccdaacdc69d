"""The records of ``gq.kernels``: rungs with what ``auto`` does with them on a device, worked out when read.

A view is an operation on a device, with operands of one format or of any. It asks :func:`ladder.explain` for
each number of rows up to ``FEW``, then for growing ones, and halves the steps between two that differ. So a
rung that is taken only for a few numbers of rows between two steps would not be seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from .card import Card
from .cards import card_named
from .ladder import CHOICES, Problem, Rung, absent, current_card, explain, rungs

FEW, MOST_ROWS = 33, 4096  # rows of activations: up to which each is asked about; the last one
GROWTH = 1.15  # from step to step
COARSE = (1, 2, 3, 4, 8, 9, 16, 28, 32, 33, 64, 128, 512, 4096)  # steps where all formats are asked about
STAND_IN = "NVIDIA H200"  # the card of lists on a machine without a GPU
Ranges = tuple[range, ...]


def grid() -> list[int]:
    """The numbers of rows at which choices are compared."""
    rows = list(range(1, FEW + 1))
    while rows[-1] < MOST_ROWS:
        rows.append(min(MOST_ROWS, int(rows[-1] * GROWTH)))
    return rows


class View(NamedTuple):
    """An operation on a device, a shape, and the rows that figures are for."""

    kind: type[Problem]
    device: str
    named: Card | None  # the card that the caller names
    formats: tuple[Any, ...]
    shape: tuple[int, int] | None
    rows: int

    @property
    def card(self) -> Card | None:
        """The card of the view: the named one, the current one, or the one that was measured."""
        if self.device != "cuda":
            return None
        return self.named or current_card(self.device) or card_named("kernels", STAND_IN)

    def problems(self) -> list[Problem]:
        """A problem for each format that the operation takes."""
        options = () if self.shape is None else (self.shape,)
        shown = (self.kind.shown(name, self.device, self.card, *options) for name in self.formats)
        return [problems[0] for problems in shown if problems]


class Choices:
    """The kernels that ``auto`` takes in a view, by rows."""

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def taken(self) -> dict[str, Ranges]:
        """Ranges of rows by kernel, over all formats of the view."""
        if absent(self.view.kind.op, self.view.device, self.view.named) is not None:
            return {}
        rows: dict[str, list[range]] = {}
        problems = self.view.problems()
        steps = grid() if len(problems) == 1 else COARSE
        for problem in problems:
            for name, span in spans(problem, steps):
                rows.setdefault(name, []).append(span)
        return {name: joined(parts) for name, parts in rows.items()}

    @cached_property
    def problem(self) -> Problem | None:
        """The problem that figures are for; None in a list of no format."""
        problems = self.view.problems() if len(self.view.formats) == 1 else []
        return problems[0].with_rows(self.view.rows) if problems else None

    @cached_property
    def packed(self) -> dict[str, bool | None]:
        """By kernel, True if the package has its code for the rows at which it is taken, or the list's."""
        cases = {}
        view = self.view
        for rung in rungs(view.kind.op, view.device, view.named) if self.problem else ():
            spans = self.taken.get(rung.name, ())
            rows = {end for span in spans for end in (span[0], span[-1])}
            rows |= {m for m in COARSE if any(m in span for span in spans)}
            problems = [self.problem.with_rows(m) for m in sorted(rows)] if self.problem else []
            if self.problem and not problems and rung.refuses(self.problem) is None:
                problems = [self.problem]
            cases[rung.name] = problems
        return hook(self.view.device, "packed", {name: some for name, some in cases.items() if some}) or {}


def spans(problem: Problem, steps: Iterable[int]) -> Iterable[tuple[str, range]]:
    """The kernel that ``auto`` takes, for each range of rows."""

    def taken(rows: int) -> str:
        try:
            return explain(problem.with_rows(rows)).rung.name
        except UnsupportedError:  # no kernel takes it
            return ""

    first, *others = steps
    start, name = first, taken(first)
    for rows in others:
        while taken(rows) != name:
            change = first + 1 + bisect_left(range(first + 1, rows), True, key=lambda m: taken(m) != name)
            yield name, range(start, change)
            start, first, name = change, change, taken(change)
        first = rows
    yield name, range(start, first + 1)


def joined(parts: Iterable[range]) -> Ranges:
    """Rows in as few ranges as can be, in order."""
    whole: list[range] = []
    for part in sorted(parts, key=lambda part: part.start):
        if whole and part.start <= whole[-1].stop:
            whole[-1] = range(whole[-1].start, max(whole[-1].stop, part.stop))
        else:
            whole.append(part)
    return tuple(whole)


@dataclass(frozen=True)
class Listed(Rung):
    """A rung in a list, with what ``auto`` does with it.

    taken      the ranges of rows of activations, up to 4096, at which ``auto`` takes it on the card; of all
               formats if the list is of none. Empty: it is there to be read, or for a call that names it
    packed     True if its code for these rows comes with the package, so that nothing is compiled; None where
               that is not known, or where it takes no such rows
    estimate   microseconds for the shape and rows of the list, estimated or measured; None as above
    floor      microseconds that no such kernel can go below, by the data sheet of the card
    """

    choices: Choices = field(repr=False, compare=False, kw_only=True)

    @cached_property
    def taken(self) -> Ranges:
        return self.choices.taken.get(self.name, ())

    @cached_property
    def packed(self) -> bool | None:
        return self.choices.packed.get(self.name)

    @cached_property
    def estimate(self) -> float | None:
        return self._figure("estimate")

    @cached_property
    def floor(self) -> float | None:
        return self._figure("floor")

    def _figure(self, name: str) -> float | None:
        problem = self.choices.problem
        if problem is None or self.refuses(problem) is not None:
            return None
        us: float | None = hook(self.device, name, problem, self.name)
        return us


def hook(device: str, name: str, *arguments: Any) -> Any:
    """The answer of the module that orders a device's rungs; None if it has no such function."""
    function = getattr(import_module(CHOICES[device]), name, None)
    return None if function is None else function(*arguments)


def listed(rung: Rung, choices: Choices) -> Listed:
    """A rung as a record of a list."""
    return Listed(**{each.name: getattr(rung, each.name) for each in fields(Rung)}, choices=choices)


def in_words(taken: Ranges) -> str:
    """Ranges of rows in a few characters: ``1-8, 64-``."""
    return ", ".join(
        str(span.start)
        if len(span) == 1
        else f"{span.start}-" + ("" if span[-1] == MOST_ROWS else str(span[-1]))
        for span in taken
    )
