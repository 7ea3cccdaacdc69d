"""A ggml of our own that misbehaves on demand, so that no real one is needed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ggmlq.llama import Bridge


@pytest.fixture(scope="session")
def compile_fake():
    """Compile the fake to a path, with macros; without a C compiler the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    source = Path(__file__).with_name("fake_ggml.c")

    def build(path: Path, *macros: str) -> Path:
        if compiler is None:
            pytest.skip("no C compiler for the fake ggml")
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = [f"-D{macro}" for macro in macros]
        command = [compiler, "-shared", "-fPIC", "-O1", *flags, "-o", str(path), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the C compiler does not build the fake ggml: {done.stderr[-300:]}")
        return path

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
