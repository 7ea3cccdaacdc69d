"""One row times two matrices and the gate between them, in one launch, on an emulated card."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import put_emulated
from emulated_packed import pack_q4_0
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels import gated
from ggmlq.cuda.kernels.cost.gemv import GemvSplit
from ggmlq.cuda.kernels.gemv.stages import ALONE, FOUR, TWO, SplitBlocks
from ggmlq.ops.gated_linear import ACTIVATIONS

CASES = [  # N, K, split, activation there and here, kind of x and y
    (40, 768, GemvSplit(TWO, ALONE), "silu", "silu", np.float32),
    (70, 448, GemvSplit(FOUR, SplitBlocks(1, 2)), "gelu", "gelu_tanh", np.float16),
    (33, 1088, GemvSplit(TWO, SplitBlocks(3, 1)), "swiglu_oai", "swiglu_oai", np.float16),
    (48, 320, GemvSplit(FOUR, SplitBlocks(2, 2)), "silu", "silu", np.float32),
]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[2]}")
def test_a_gate_in_the_epilogue(case, monkeypatch, fresh):
    """Two arrays with their biases, or where rows are a multiple of 16, one over the other."""
    n, k, split, there, here, kind = case
    state = put_emulated(monkeypatch)
    host = [weights("q4_0", n, k, int(fresh.integers(1 << 30))) for _ in range(2)]
    (gate, layout), (up, _) = map(pack_q4_0, host)
    gate, up, x = on_device(gate), on_device(up), on_device(fresh.standard_normal((1, k)).astype(kind))
    biases = tuple(on_device(fresh.standard_normal(n).astype(dtype)) for dtype in (np.float32, np.float16))
    y = on_device(np.full(n + 2, np.nan, kind))
    if not n % 16:
        both = np.stack([host[0].raw, host[1].raw]).reshape(2 * n, -1)
        stack, _ = pack_q4_0(gq.QuantArray(host[0].format, (2 * n, k), both))
        gate = on_device(stack)
        up = gate[n // 16 :]
    for array in (gate, x, y, *biases, *([up] if n % 16 else [])):
        state.memory.add(array)
    monkeypatch.setattr(device, "older_than", lambda least: None)
    gated.multiply(there, x, gated.Pair(layout, gate, up, biases, n), y[1:-1].reshape(1, n), split)
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    g, u = (
        gq.reference.linear(np.asarray(x), q, "int16x") + np.asarray(bias)
        for q, bias in zip(host, biases, strict=True)
    )
    with np.errstate(over="ignore"):
        want = ACTIVATIONS[here](np, g.astype(np.float32), u.astype(np.float32))[0]
    tolerance = 1e-5 if kind is np.float32 else 1e-3
    assert np.allclose(np.asarray(y[1:-1]), want, rtol=tolerance, atol=tolerance * np.abs(want).max())
