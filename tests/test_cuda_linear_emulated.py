"""Rungs that unpack blocks as they multiply, on an emulated card: their own launches against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import put_emulated
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS

RUNGS = {rung.name[5:]: rung for rung in gq.kernels(device="cuda")}
FIRST = ("naive_f32", "naive", "tiled", "vectorized", "dp4a", "registers", "mma")


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", FIRST)
def test_a_launch(name, monkeypatch, fresh):
    """Rows and columns that fill no tile, between rows that stay as they are."""
    state, rung = put_emulated(monkeypatch), RUNGS[name]
    kinds = [
        fmt for fmt in ("q4_0", "q8_0", "mxfp4", "nvfp4", "q4_1")
        if rung.refuses(Linear(FORMATS[fmt], 2, 17, 64, device="cuda")) is None
    ]  # fmt: skip
    m, n, seed = int(fresh.integers(1, 4)), 17, int(fresh.integers(1 << 30))
    host = weights(str(fresh.choice(kinds)), n, 64, seed)
    raw, x = on_device(host.raw), on_device(fresh.standard_normal((m, 64)).astype(np.float32))
    y = on_device(np.full((m + 2, n), np.nan, np.float32))
    for array in (raw, x, y):
        state.memory.add(array)
    rung.launch(x, gq.QuantArray(host.format, host.shape, raw), y[1:-1])
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    error = np.abs(np.asarray(y[1:-1]) - gq.reference.linear(np.asarray(x), host, rung.arithmetic))
    assert (error <= gq.reference.bound(np.asarray(x), host, rung.arithmetic)).all(), host
