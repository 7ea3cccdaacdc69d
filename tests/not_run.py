"""Tests that did not run and why, in a few lines; all of it with ``-v``, and in a file of pytest's cache."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drawing import SLOW

MOST = 12  # lines; the verdict comes after them
CACHE = "ggmlq"
NAME = "not_run.txt"


class Left(NamedTuple):
    """A number of tests that did not run for one reason, and those of them that have names."""

    reason: str
    count: int
    tests: list[str]

    @property
    def line(self) -> str:
        return f"{self.count} tests did not run: {self.reason}"


def left(terminalreporter, draws) -> list[Left]:
    """The reasons of a run, the most frequent first."""
    skipped = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        place = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[place.removeprefix("Skipped: ")].append(report.nodeid)
    reasons = [Left(reason, len(tests), tests) for reason, tests in skipped.items()]
    for test, draw in draws.items():
        if test == SLOW:
            reasons.append(Left("marked slow; --slow runs them, and benchmarks", draw.left, []))
            continue
        reason = f"cases of {test} that --draw left out; it drew {', '.join(draw.taken)}"
        reasons.append(Left(reason, draw.left, []))
    return sorted(reasons, key=lambda one: -one.count)


def _kind(reason: str) -> str:
    """The part that a reason has in common with others: its first words, without names."""
    if drawn := re.match(r"cases of \S*::", reason):
        return re.sub(r"^cases of .* that", "cases that", reason[drawn.start() :]).partition(";")[0]
    return re.split(r" \(|[:;]", reason)[0]


def grouped(reasons: list[Left]) -> Iterator[str]:
    """A line for each kind of reason, the most frequent first, and one for those beyond ``MOST``."""
    kinds = defaultdict(list)
    for one in reasons:
        kinds[_kind(one.reason)].append(one)
    groups = sorted(kinds.items(), key=lambda kind: -sum(one.count for one in kind[1]))
    shown = groups if len(groups) <= MOST else groups[: MOST - 1]
    for kind, several in shown:
        count = sum(one.count for one in several)
        whole = several[0].reason if len(several) == 1 else f"{kind} ({len(several)} reasons)"
        yield f"{count} tests did not run: {whole}"
    if others := groups[len(shown) :]:
        count = sum(one.count for _, several in others for one in several)
        yield f"{count} tests did not run: for {len(others)} rarer reasons"


def summary(terminalreporter, draws) -> Iterator[str]:
    """The lines of a run."""
    config, reasons = terminalreporter.config, left(terminalreporter, draws)
    lines = [one.line for one in reasons]
    short = list(grouped(reasons))
    yield from lines if config.option.verbose > 0 else short
    if not reasons:
        yield "nothing: every test asked for ran"
    elif short != lines and config.option.verbose <= 0:
        yield f"all {len(lines)} reasons: {_kept(config, reasons) or 'with -v'}"


def _kept(config, reasons: list[Left]) -> str:
    """The file with all reasons and the tests; nothing without pytest's cache."""
    if not (cache := getattr(config, "cache", None)):
        return ""
    path = Path(cache.mkdir(CACHE)) / NAME
    path.write_text("".join(f"{one.line}\n" + "".join(f"    {t}\n" for t in one.tests) for one in reasons))
    return f"with -v, and with their tests in {os.path.relpath(path)}"
