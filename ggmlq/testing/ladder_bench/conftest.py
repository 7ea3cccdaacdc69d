"""Hooks of pytest-benchmark: columns beside the names, and facts of the machine in JSON."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from ..machine import commit, machine
from .columns import Bench, beside

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
