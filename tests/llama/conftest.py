"""A ggml of our own that misbehaves on demand, so that no real one is needed here."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import library

from ggmlq.llama import Bridge


@pytest.fixture(scope="session")
def compile_fake():
    """Compile the fake to a path, with macros; without a C compiler the test is skipped."""
    source = Path(__file__).with_name("fake_ggml.c")

    def build(path: Path, *macros: str) -> Path:
        return library(source, path, *(f"-D{macro}" for macro in macros))

    return build


@pytest.fixture(scope="session")
def fake_library(compile_fake, tmp_path_factory):
    """Path of the fake, all of ggml in one file."""
    return compile_fake(tmp_path_factory.mktemp("fake") / "libggml.so")


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
