"""``y @ q`` on Hopper: the kernel of packed weights on an emulated card, its splits, and the choice."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gpu import put_emulated
from emulated_packed import pack_blocks
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.activations import floats
from ggmlq.cuda.linear import transposed
from ggmlq.cuda.machine import device
from ggmlq.cuda.packed.pack import PackedWeights
from ggmlq.testing.cases import weights

CASES = [  # type, M, N, K, blocks of a cluster, kind of y
    ("q4_0", 1, 70, 288, 2, np.float32),
    ("q4_K", 3, 130, 256, 1, np.float16),
    ("q6_K", 8, 40, 256, 4, np.float32),
    ("q8_0", 13, 300, 96, 2, np.float16),
    ("iq4_xs", 16, 33, 256, 1, np.float32),
    ("q3_K", 33, 88, 256, 2, np.float16),
    ("q5_1", 70, 24, 160, 1, np.float32),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]} rows")
def test_the_kernel_of_packed_weights(case, monkeypatch, fresh):
    """Weights rounded to bfloat16, scales before, are what it multiplies; sums are float32."""
    name, m, n, k, splits, kind = case
    state, host = put_emulated(monkeypatch), weights(name, n, k, int(fresh.integers(1 << 30)))
    fragments, layout = pack_blocks(host)
    fragments, y = on_device(fragments), on_device(fresh.standard_normal((m, n)).astype(kind))
    bias = on_device(fresh.standard_normal(k).astype(np.float32))
    out = on_device(np.full((m + 2, k), np.nan, kind))
    for place in (floats, device):
        monkeypatch.setattr(place, "cupy", lambda: state.cupy)
    monkeypatch.setattr(transposed, "packed_weights", lambda q: PackedWeights(fragments, layout))
    monkeypatch.setattr(transposed, "splits_for", lambda *facts: splits)
    for array in (fragments, y, bias, out):
        state.memory.add(array)
    transposed.multiply(y, gq.QuantArray(host.format, (n, k), on_device(host.raw)), out[1:-1], bias, False)
    assert np.isnan(out[[0, -1]]).all(), "written past its outputs"
    rounded = np.asarray(y).astype(np.float32)
    want = rounded.astype(np.float64) @ host.dequantize(np.float64) + np.asarray(bias)
    sizes = np.abs(rounded) @ np.abs(host.dequantize(np.float64)) + np.abs(np.asarray(bias))
    assert (np.abs(np.asarray(out[1:-1]) - want) <= 2.0**-7 * sizes + 1e-30).all()
    assert gq.nmse(np.asarray(out[1:-1]), want) < 3e-5
