"""Cases that one run takes and others leave to another: of block formats, and of tests marked ``drawn``.

``--draw N`` takes N block formats, and of each test marked ``drawn(n)`` n cases, all by the run's seed; the
summary names what was taken. ``drawn(n, by="name")`` takes all cases of n values of a parameter. Without
``--draw`` all run.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import pytest

from ggmlq.formats import FORMATS, BlockFormat

BLOCKS = {fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)}
BY_ANY = {name.lower(): name for name in BLOCKS}  # as names are looked up, without their suggestions
USUAL = ("q4_0", "q8_0", "q4_K")  # in every draw of formats: what most files hold


class Draw(NamedTuple):
    """Number of cases of one kind that are left out, and the names of those that run."""

    left: int
    taken: list[str]


def formats(config: pytest.Config) -> set[str]:
    """The block formats of this run: most of a run's time goes into compiling kernels for each."""
    count = config.option.draw
    if count is None or count >= len(BLOCKS):
        return BLOCKS
    others = sorted(BLOCKS - {*USUAL})
    rng = np.random.default_rng([config.option.seed, count])
    return {*USUAL, *rng.choice(others, max(count - len(USUAL), 0), replace=False).tolist()}


def formats_of(item: pytest.Item) -> set[str]:
    """The block formats among the parameters of a test."""
    case = getattr(item, "callspec", None)
    values = case.params.values() if case else ()
    names = [value if isinstance(value, str) else getattr(value, "name", None) for value in values]
    return {BY_ANY[name.lower()] for name in names if isinstance(name, str) and name.lower() in BY_ANY}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> dict[str, Draw]:
    """Take cases that were not drawn off the list; what was drawn, by test and for formats."""
    wanted = formats(config)
    kept = [item for item in items if not formats_of(item) - wanted]
    draws = {}
    if len(kept) < len(items):
        draws["formats"] = Draw(len(items) - len(kept), sorted(wanted))
    if config.option.draw is not None:
        kept, more = _by_marks(config, kept)
        draws |= more
    if len(kept) < len(items):
        running = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in running])
        items[:] = kept
    return draws


def _by_marks(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], dict[str, Draw]]:
    """The items that remain where tests marked ``drawn`` give up all but some of their cases."""
    tests: dict[str, dict[Hashable, list[pytest.Item]]] = {}  # by test, then by what is drawn
    for item in items:
        if item.get_closest_marker("drawn"):
            tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(_part(item), []).append(item)
    out, draws = set(), {}
    for test, parts in tests.items():
        (count,) = next(iter(parts.values()))[0].get_closest_marker("drawn").args
        if count < len(parts):
            rng = np.random.default_rng([config.option.seed, zlib.crc32(test.encode())])
            names, left = list(parts), []
            for number in rng.permutation(len(names))[count:]:
                left += parts.pop(names[number])
            out |= {*left}
            draws[test] = Draw(len(left), [str(name) for name in parts])
    return [item for item in items if item not in out], draws


def _part(item: pytest.Item) -> str:
    """The drawn part of a case: its id, or the id of one parameter."""
    by = item.get_closest_marker("drawn").kwargs.get("by")
    case = getattr(item, "callspec", None)
    assert case is not None, f"{item.nodeid} has no cases to draw from"
    if by is None:
        return str(case.id)
    value = case.params[by]
    return str(value[0] if isinstance(value, tuple) else getattr(value, "name", value))
