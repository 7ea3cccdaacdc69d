"""GRUs in integers on an emulated card: every rung's own launches, PTX by NumPy, the oracle's codes."""

from __future__ import annotations

import gru_cases as cases
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gru import put_emulated

import ggmlq as gq
from ggmlq.gru.run import INTERMEDIATE

pytestmark = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere here
RUNGS = [rung.name for rung in gq.kernels("gru", device="cuda")]


def check(state, f, x, h0=None, kernel="auto"):
    """Codes, states and intermediates are those of the oracle."""
    want = gq.reference.gru(f, x, h0)
    gpu = gq.gru.FixedGRU(f.cells, f.tables, f.rounding, f.dynamic_x, "cuda:0")
    x, h0 = (None if part is None else state.cupy.asarray(part) for part in (x, h0))
    y, h, v = gpu(x, h0, return_codes=True, return_intermediates=True, kernel=kernel)
    assert y.dtype == f.parameters["h"].dtype
    assert (np.asarray(y) == want["h"]).all(), kernel
    assert (np.asarray(v) == np.concatenate([want[name] for name in INTERMEDIATE], -1)).all()
    assert (np.asarray(h) == (want["h"][-1] if len(x) else want["h0"])).all()
    plain, last = gpu(x, h0, kernel=kernel)
    assert (np.asarray(plain) == f.parameters["h"].decode(want["h"])).all()
    assert plain.dtype == last.dtype == np.float32
    return gpu


@pytest.mark.parametrize("kernel", RUNGS)
def test_codes(kernel, monkeypatch, fresh):
    state = put_emulated(monkeypatch)
    f, _, x = cases.fixed(fresh, 3, 3, 5, 7, "mixed")
    check(state, f, x, fresh.uniform(-0.4, 0.4, (3, 7)), kernel)
