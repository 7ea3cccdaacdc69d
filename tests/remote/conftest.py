"""A server with a model, and a cache of its own for each test."""

from __future__ import annotations

import numpy as np
import pytest
from served import served

import ggmlq as gq
from ggmlq.remote import ranges


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of its own for each test, and short pauses."""
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ranges, "PAUSE", 0.001)
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tensors(fresh):
    """A megabyte and a half in some tensors."""
    found = {f"blk.{i}.ffn_up.weight": fresh.standard_normal((64, 1024), np.float32) for i in range(4)}
    found["blk.0.attn_norm.weight"] = fresh.standard_normal(1000).astype(np.float16)
    found["small"] = gq.quantize(fresh.standard_normal((3, 32), np.float32), "q4_0")
    found["empty"] = np.zeros((0, 8), np.float32)
    return found


@pytest.fixture
def gguf_bytes(tmp_path, tensors):
    gq.save(tmp_path / "m.gguf", tensors, {"general.name": "far", "tokens": ["word"] * 2000})
    return (tmp_path / "m.gguf").read_bytes()


@pytest.fixture
def server(gguf_bytes):
    with served({"/a/m.gguf": gguf_bytes}) as server:
        yield server
