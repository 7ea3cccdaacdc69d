"""The library of hostile_ggml.c, and bridges to it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from compiled import library
from worker_processes import ends, workers

from ggmlq.llama import Bridge


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    source = Path(__file__).with_name("hostile_ggml.c")
    return library(source, tmp_path_factory.mktemp("hostile") / "libggml.so")


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """``noted()``: the processes that the library started; whatever is left of them ends with the test."""
    path = tmp_path / "pids"
    monkeypatch.setenv("HOSTILE_PIDS", str(path))

    def pids():
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    yield pids
    for pid in pids():
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hostile(built, noted, monkeypatch):
    """``hostile("spin", "mul_mat")`` is a bridge to a library that will spin there."""
    opened = []

    def make(trouble="", place="", timeout=60):
        monkeypatch.setenv("HOSTILE", f"{trouble} {place}")
        opened.append(Bridge(built, timeout=timeout))
        monkeypatch.setenv("HOSTILE", "")  # the next process behaves
        return opened[-1]

    yield make
    for bridge in opened:
        bridge.close()
    assert ends(workers())
