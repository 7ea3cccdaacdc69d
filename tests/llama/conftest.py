"""A ggml of our own that misbehaves on demand; and a real libllama with small models, where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from beside import located
from compiled import library

from ggmlq.llama import Bridge
from ggmlq.testing.models import Shape, tiny_model


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


SMALL = Shape(hidden=256)
LAYERS = [
    {"q": "q4_K", "k": "q6_K", "v": "q8_0", "out": "q4_0", "gate": "iq4_nl", "up": "q5_K", "down": "q4_1"},
    {"q": "f16", "k": "q5_0", "v": "bf16", "out": "q3_K", "gate": "q2_K", "up": "mxfp4", "down": "tq2_0"},
]


@pytest.fixture(scope="session")
def libllama():
    """A libllama; tests that ask for it are skipped where there is none."""
    return located(layouts=True)


@pytest.fixture(scope="session")
def faulty_ops(libllama, tmp_path_factory):
    """Kernels of the library with faults, to be loaded before it: ``LD_PRELOAD``."""
    if not sys.platform.startswith("linux"):
        pytest.skip("LD_PRELOAD is Linux's")
    path = tmp_path_factory.mktemp("faulty") / "ops.so"
    return library(Path(__file__).with_name("faulty_ops.c"), path, "-ldl", "-lm")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A dense model and two with experts."""
    folder = tmp_path_factory.mktemp("models")
    experts = Shape(layers=1, experts=4, hidden=256)
    shared = Shape(layers=1, experts=4, hidden=256, shared=True)
    return {
        "dense": tiny_model(folder / "dense.gguf", LAYERS, SMALL, seed=1),
        "experts": tiny_model(folder / "experts.gguf", LAYERS[:1], experts, seed=2),
        "shared": tiny_model(folder / "shared.gguf", {**LAYERS[0], "down": "q4_0"}, shared, seed=3),
    }
