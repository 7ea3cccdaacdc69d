"""Facts that every result carries: the machine, the versions, the commit."""

from __future__ import annotations

import pytest

import ggmlq as gq
from ggmlq.llama.library import Library
from ggmlq.testing.machine import commit, machine


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Put the machine, the versions and the commit into the JSON file."""
    output_json["ggmlq"] = {**machine(), "commit": commit()}


@pytest.fixture(scope="session")
def libggml():
    """The peer ggml, where a library is installed."""
    try:
        return Library()
    except gq.errors.GGMLQError as error:
        pytest.skip(str(error))
