"""``--bisect``: names the first group of nodes whose result differs where the library fuses them.

The run is right with a stop at every node, and not without one. So it is run with stops from node k on: the
smallest k at which its logits leave those of the trace says that the node before k is computed otherwise
where nothing stops between it and the next one. Halving finds k. Then stops everywhere but within this group
must show the difference again, and the group is judged as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import gguf
from ..arrays.array import QuantArray
from ..base.progress import Progress
from .afterwards import Logits, apart, largest, same, untraced
from .fusion import MOST, VIEWS
from .groups import Group
from .product import Product
from .runs import Run
from .verdicts import Judge

PART = 16  # a difference counts from this part of the whole one: roundings of other groups are smaller


@dataclass(frozen=True)
class Finding:
    """The note of a bisection, and the record of the group that it names."""

    note: str
    record: Product | None = None


class Bisection:
    """Runs with stops at some nodes; each gives its distance from the run with a stop at every node."""

    def __init__(self, run: Run, end: dict[str, Any], bar: bool | None) -> None:
        self._run, self._end = run, end
        self._listing = run.listing(tokens=end["tokens"], then=end["then"])["listing"]
        self._count = len(self._listing)
        self._computed = [facts["number"] for facts in self._listing if facts["op"] not in VIEWS]
        steps = max(self._count, 1).bit_length() + 4
        self._bar = Progress(steps, "bisecting", " runs", bar)

    def _logits(self, *numbers: tuple[int, int]) -> Logits:
        self._bar.advance(1)
        return untraced(self._run, self._end, numbers=numbers)

    def find(self) -> Finding:
        """The first group that makes a difference, judged."""
        try:
            return self._first_group()
        finally:
            self._bar.close()

    def _first_group(self) -> Finding:
        stopped, free = self._logits((0, self._count)), self._logits()
        plain = untraced(self._run, self._end)
        whole = apart(free, stopped)
        if not same(free, plain) and apart(free, plain) >= apart(plain, stopped) / PART:
            return Finding(
                "Bisected: with a callback that stops at no node the logits are not those without one: the "
                "difference is none of fusion. A race, or pipelines over several devices, may be the cause."
            )
        if not whole:
            return Finding("Bisected: a stop at every node gives the logits of the run without a stop.")
        last = self._smallest(stopped, whole / PART)
        members = self._extent(last, stopped, whole / PART)
        if len(members) < 2:
            return Finding(
                "Bisected: the logits leave those of the trace where nothing stops up to "
                f"{self._name(self._computed[last])}, but no group of {MOST} nodes makes that difference "
                "alone."
            )
        return self._judged(members, whole, largest(stopped))

    def _smallest(self, stopped: Logits, limit: float) -> int:
        """The first node, by its place among those that compute, without whose stop the logits differ."""
        low, high = 0, len(self._computed)  # stops from `low` on are right, from `high` on wrong
        while high - low > 1:
            middle = (low + high) // 2
            off = apart(self._logits((self._computed[middle], self._count)), stopped)
            low, high = (low, middle) if off > limit else (middle, high)
        return low

    def _extent(self, last: int, stopped: Logits, limit: float) -> list[int]:
        """The nodes of the smallest group around a node that shows the difference alone; empty without."""
        for before in range(MOST - 1):
            first = last - before
            if first < 0 or last + 1 >= len(self._computed):
                break
            # Views between the last two compute nothing, but a stop there would part them.
            stops = (0, self._computed[first]), (self._computed[last + 1], self._count)
            if apart(self._logits(*stops), stopped) > limit:
                return self._computed[first : last + 2]
        return []

    def _name(self, number: int) -> str:
        facts = self._listing[number]
        return f"{facts['name']} ({facts['op']}, step {facts['step']})"

    def _judged(self, members: list[int], whole: float, size: float) -> Finding:
        named = " and ".join(self._name(number) for number in members)
        note = (
            f"Bisected: the first nodes that move the logits where nothing stops between them are {named}. "
            f"Without the trace the logits are {whole:.2g} apart (they reach {size:.2g})"
        )
        run, end = self._run, self._end
        name = (str(self._listing[members[-1]]["name"]),)
        with gguf.open(run.settings.model) as model:
            record = self._record(model, members, name, end)
        if record is None:
            return Finding(f"{note}.")
        if record.verdict == "wrong":
            return Finding(f"{note}, and the group is wrong.", record)
        verdict = "right within its bound: it rounds otherwise" if record.verdict == "ok" else "not judged"
        return Finding(f"{note}; the group is {verdict}.", record)

    def _record(
        self, model: Mapping[str, QuantArray], members: list[int], name: tuple[str, ...], end: dict[str, Any]
    ) -> Product | None:
        judge, record = Judge(model, "all", self._run.settings.captures), None
        nodes = self._run.nodes(
            tokens=end["tokens"], then=end["then"], groups=(tuple(members),), select=name, nodes="all"
        )
        for node in nodes:
            if isinstance(node, Group):
                record = judge.record(node)
        return None if record is None else replace(record, again=True)


def bisect(run: Run, end: dict[str, Any], bar: bool | None = False) -> Finding:
    """Name the first group of nodes that differs between a run with a stop at every node and one without."""
    run.patience = run.elapsed
    return Bisection(run, end, bar).find()
