"""Facts that every result carries (the machine, the versions, the commit), and columns of the ladder."""

from __future__ import annotations

import pytest

import ggmlq as gq
from ggmlq.llama.library import Library
from ggmlq.testing.ladder_bench.conftest import pytest_benchmark_group_stats, pytest_benchmark_update_json

# Scripts that import torch, without tests.
collect_ignore_glob = ["bench_torch*.py", "bench_diffusers.py", "torch_peers.py"]
__all__ = ["libggml", "pytest_benchmark_group_stats", "pytest_benchmark_update_json"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process where times are measured."""
    return 0 if config.option.benchmark_enable else None


@pytest.fixture(scope="session")
def libggml():
    """The peer ggml, where a library is installed."""
    try:
        return Library()
    except gq.errors.GGMLQError as error:
        pytest.skip(str(error))
