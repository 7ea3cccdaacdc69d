"""Cases that one run takes and others leave to another: of formats, of tests marked ``drawn``, slow ones.

``--draw N`` takes N block formats, of each test marked ``drawn(n)`` n cases, and of the tests marked ``slow``
a third, all by the run's seed; the summary names what was taken. ``drawn(n, by="name")`` takes all cases of n
values of a parameter. A run of all folders draws; one of chosen files, by ``-k`` or by ``-m`` takes all
cases, but slow ones. ``--slow`` adds those, ``--all`` takes everything.
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
FORMATS_OF_A_RUN = 1
FAST = "not slow"  # -m of setup.cfg
SLOW = "slow"  # among the draws
SLOW_TESTS = "slow tests"  # likewise
SLOW_SHARE = 3  # of so many slow tests a run of all folders takes one
SLOW_MARKS = (SLOW, "llama", "hosts", "models")
USUAL = ("q4_0", "q8_0", "q4_K")  # what most files hold: all but one format of a draw


class Draw(NamedTuple):
    """Number of cases of one kind that are left out, and what runs: names, or how many."""

    left: int
    taken: list[str]


def settle(config: pytest.Config) -> None:
    """Options of a run where its user left them open."""
    option, source = config.option, config.args_source
    chosen = source == config.ArgsSource.ARGS or option.keyword or option.markexpr not in ("", FAST)
    if option.draw is None and not (option.all or chosen):
        option.draw = FORMATS_OF_A_RUN
    if option.markexpr == FAST and (option.slow or option.all):
        option.markexpr = ""


def formats(config: pytest.Config) -> set[str]:
    """The block formats of this run: most of a run's time goes into compiling kernels for each."""
    count = config.option.draw
    if count is None or count >= len(BLOCKS):
        return BLOCKS
    rng = np.random.default_rng([config.option.seed, count])
    usual = rng.permutation(USUAL)[: max(count - 1, 1)].tolist()
    others = rng.permutation(sorted(BLOCKS - {*USUAL}))[: count - len(usual)].tolist()
    return {*usual, *others}


def formats_of(item: pytest.Item) -> set[str]:
    """The block formats among the parameters of a test."""
    case = getattr(item, "callspec", None)
    values = case.params.values() if case else ()
    names = [value if isinstance(value, str) else getattr(value, "name", None) for value in values]
    return {BY_ANY[name.lower()] for name in names if isinstance(name, str) and name.lower() in BY_ANY}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> dict[str, Draw]:
    """Take slow cases and those that were not drawn off the list; their numbers, and what was drawn."""
    fast, wanted, draws = items, formats(config), {}
    if config.option.markexpr == FAST:
        fast = [item for item in items if not is_slow(item, config.option.draw is not None)]
    if len(fast) < len(items):
        draws[SLOW] = Draw(len(items) - len(fast), [])
    kept = [item for item in fast if not formats_of(item) - wanted]
    if len(kept) < len(fast):
        draws["formats"] = Draw(len(fast) - len(kept), sorted(wanted))
    if config.option.draw is not None:
        kept, more = _by_marks(config, kept)
        draws |= more
        kept, more = _by_slowness(config, kept)
        draws |= more
    if len(kept) < len(items):
        running = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in running])
        items[:] = kept
    return draws


def is_slow(item: pytest.Item, whole: bool) -> bool:
    """True for a case that the fast set leaves out; for a benchmark, where no folder was chosen."""
    benchmark = whole and "benchmark" in getattr(item, "fixturenames", ())
    return benchmark or any(map(item.get_closest_marker, SLOW_MARKS))


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


def _by_slowness(
    config: pytest.Config, items: list[pytest.Item]
) -> tuple[list[pytest.Item], dict[str, Draw]]:
    """The items that remain where one test of ``SLOW_SHARE`` marked ``slow`` is taken, with all its cases."""
    slow = {item: item.nodeid.partition("[")[0] for item in items if item.get_closest_marker(SLOW)}
    tests = sorted({*slow.values()})
    rng = np.random.default_rng([config.option.seed, len(SLOW_TESTS)])
    taken = {*rng.permutation(tests)[: -(-len(tests) // SLOW_SHARE)].tolist()}
    kept = [item for item in items if slow.get(item) in {None, *taken}]
    left = len(items) - len(kept)
    return kept, {SLOW_TESTS: Draw(left, [f"{len(taken)} of {len(tests)} tests"])} if left else {}


def _part(item: pytest.Item) -> str:
    """The drawn part of a case: its id, or the id of one parameter."""
    by = item.get_closest_marker("drawn").kwargs.get("by")
    case = getattr(item, "callspec", None)
    assert case is not None, f"{item.nodeid} has no cases to draw from"
    if by is None:
        return str(case.id)
    value = case.params[by]
    return str(value[0] if isinstance(value, tuple) else getattr(value, "name", value))
