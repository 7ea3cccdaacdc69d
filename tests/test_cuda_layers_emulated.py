"""Small parts of a layer on an emulated card: norms, turned heads, gates, beside those of the host."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device

from ggmlq.cuda.activations import layers
from ggmlq.model.arithmetic import Exact
from ggmlq.model.config import Rope
from ggmlq.model.rope import turned, turns

ULP = 2.0**-24  # half a unit in the last place of float32
HOST = Exact()


@pytest.fixture
def card(monkeypatch):
    state = put_emulated(monkeypatch)
    monkeypatch.setattr(layers, "cupy", lambda: state.cupy)
    return state


@pytest.mark.parametrize("columns", [1, 64, 100, 129, 600, 2050])
def test_norm(card, fresh, columns):
    """A thread sums up to 17 squares one after the other, and 38 sums are added: all have one sign."""
    x = fresh.standard_normal((2, 1, columns)).astype(np.float32) * np.float32(10.0 ** fresh.uniform(-3, 3))
    weights = fresh.standard_normal(columns).astype(np.float32)
    y = np.asarray(layers.normed(on_device(x), on_device(weights), 1e-5))
    expected = HOST.norm(x.astype(np.float64), 1e-5) * weights
    assert y.shape == x.shape
    assert np.allclose(y, expected, rtol=64 * ULP, atol=0)


@pytest.mark.parametrize("halves", [False, True])
def test_turns(card, fresh, halves):
    dims, positions = 32, np.sort(fresh.choice(600, 3, replace=False))
    how = Rope(dims, halves, 10000.0)
    x = fresh.standard_normal((3, 2, 48)).astype(np.float32)
    angles = [part.astype(np.float32) for part in turns(how, positions)]
    y = np.asarray(layers.turned(on_device(x), halves, *map(on_device, angles)))
    expected = turned(x.astype(np.float64), how, *angles)
    assert np.abs(y - expected).max() <= 4 * ULP * np.abs(x).max()  # two products and a sum
    assert np.array_equal(y[..., dims:], x[..., dims:])


@pytest.mark.parametrize("name", layers.GATES)
def test_gates(card, fresh, name):
    """An exponent of up to 128 is rounded, and its exponential is off by as many units."""
    gate, up = (3 * fresh.standard_normal((3, 150)).astype(np.float32) for _ in range(2))
    gate[0, :4] = 0, 90, -90, 1000
    y = np.asarray(layers.gated(name, on_device(gate), on_device(up)))
    expected = HOST.gated(name, gate.astype(np.float64), up.astype(np.float64))
    assert np.allclose(y, expected, rtol=256 * ULP, atol=256 * ULP)
