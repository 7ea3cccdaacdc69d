"""What every result carries: the machine, the versions, the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ggmlq import doctor
from ggmlq.errors import GGMLQError
from ggmlq.llama.library import Library


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Put the report of ``ggmlq doctor`` and the commit into the JSON file."""
    root = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    output_json["ggmlq"] = {**doctor.examine(), "commit": commit.stdout.strip()}


@pytest.fixture(scope="session")
def libggml():
    """The peer, where there is one."""
    try:
        return Library()
    except GGMLQError as error:
        pytest.skip(str(error))
