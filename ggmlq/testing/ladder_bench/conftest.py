"""Hooks of pytest-benchmark: columns beside the names, and facts of the machine in JSON."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import pytest

from ...base.text import three_digits
from ..machine import commit, machine

Bench = dict[str, Any]
HEADS = ("GFLOP/s", "GB/s", "of the roof")
SHOWN = "with columns"  # set where a benchmark has them: two folders of benchmarks may have these hooks


def beside(groups: Iterable[tuple[str | None, list[Bench]]]) -> list[tuple[str | None, list[Bench]]]:
    """Groups whose names say the columns, and whose benchmarks have them behind their names.

    The figures follow from the fastest round, so that those of a compared run are its own.
    """
    return [_group(name, benchmarks) for name, benchmarks in groups]


def _group(name: str | None, benchmarks: list[Bench]) -> tuple[str | None, list[Bench]]:
    steps = [bench for bench in benchmarks if "operations" in bench["extra_info"] and not bench.get(SHOWN)]
    if not steps:
        return name, benchmarks
    width = max(len(_step(bench)) for bench in steps)
    for bench in steps:
        cells = [_step(bench).ljust(width)]
        cells += [f"{cell:>{len(head)}}" for cell, head in zip(_cells(bench), HEADS, strict=True)]
        bench["name"], bench[SHOWN] = "  ".join(cells), True
    return f"{name}: names, {', '.join(HEADS)}", benchmarks


def _step(bench: Bench) -> str:
    return str(bench["extra_info"]["step"])


def _cells(bench: Bench) -> list[str]:
    facts, seconds = bench["extra_info"], bench["min"]
    return [
        three_digits(facts["operations"] / seconds / 1e9),
        three_digits(facts["bytes"] / seconds / 1e9),
        f"{facts['floor'] / seconds:.0%}",
    ]


Groups = list[tuple[str | None, list[Bench]]]


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(
    config: Any, benchmarks: Any, group_by: Any
) -> Generator[None, Groups, Groups]:
    """Put the columns beside the names of each group."""
    groups = yield
    return beside(groups)


def pytest_benchmark_update_json(config: Any, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Put the machine, the versions and the commit into the JSON file."""
    output_json["ggmlq"] = {**machine(), "commit": commit()}
