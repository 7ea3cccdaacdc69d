"""A ggml of our own that misbehaves on demand, so that no real one is needed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ggmlq.llama import Bridge


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory):
    """Path of the compiled fake; tests that ask for it are skipped without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the fake ggml")
    path = tmp_path_factory.mktemp("fake") / "libggml.so"
    source = Path(__file__).with_name("fake_ggml.c")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the C compiler does not build the fake ggml: {done.stderr[-300:]}")
    return path


@pytest.fixture
def fake(fake_library, monkeypatch):
    """``fake("abort")`` is a bridge to the fake with that fault."""
    opened = []

    def make(fault: str = "", timeout: float = 60) -> Bridge:
        monkeypatch.setenv("FAKE_GGML", fault)
        opened.append(Bridge(fake_library, timeout=timeout))
        return opened[-1]

    yield make
    for bridge in opened:
        bridge.close()
