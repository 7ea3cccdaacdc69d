"""GRUs in integers on an emulated card: every rung's own launches, PTX by NumPy, the oracle's codes.

What it shows without a GPU: that sums, gates and states are right, that nothing waits for ever, that nothing
is read or written outside. Each run takes the clusters and one more case by its seed.
"""

from __future__ import annotations

import gru_cases as cases
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gru import put_emulated

import ggmlq as gq
from ggmlq.cuda.driver import device
from ggmlq.errors import DeviceError, NonFiniteError, UnsupportedError
from ggmlq.gru.cuda import r3_grid, r4_cluster
from ggmlq.gru.cuda.tile import StepTile
from ggmlq.gru.run import INTERMEDIATE

CASES = [  # rung, widths, T, N, C, H, a shape of a block that is not the rung's own
    ("graph", cases.ODD, 3, 3, 5, 7, None),
    ("graph", cases.UNSIGNED, 3, 2, 5, 7, None),
    ("graph", "int8", 33, 1, 3, 4, None),
    ("grid", "mixed", 3, 9, 70, 60, None),
    ("grid", cases.UNSIGNED, 2, 3, 5, 7, None),
    ("grid", "int8", 2, 18, 5, 128, StepTile(1, 2, 1, 1, 2)),
    ("cluster", "int8", 3, 3, 5, 7, None),
    ("cluster", cases.UNSIGNED, 3, 9, 66, 64, None),
    ("cluster", "mixed", 2, 9, 5, 100, StepTile(1, 2, 4)),
    ("cluster", "int8", 2, 17, 5, 128, StepTile(1, 2, 4, 2)),
]  # fmt: skip
quiet = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere here


def on_card(f):
    return gq.gru.FixedGRU(f.cells, f.tables, f.rounding, f.dynamic_x, "cuda:0")


def run(monkeypatch, case, rng):
    """Codes, states and intermediates are those of the oracle; y is their values."""
    name, widths, t, n, c, h, shape = case
    if shape is not None:
        module = {"grid": r3_grid, "cluster": r4_cluster}[name]
        monkeypatch.setitem(module.SHAPES, shape.columns, [shape])
    state = put_emulated(monkeypatch)
    f, _, x = cases.fixed(rng, t, n, c, h, widths)
    h0 = rng.uniform(-0.4, 0.4, (n, h))
    want, put = gq.reference.gru(f, x, h0), state.cupy.asarray
    given = {"return_codes": True, "return_intermediates": True, "kernel": f"cuda:{name}"}
    y, last, v = (np.asarray(part) for part in on_card(f)(put(x), put(h0), **given))
    assert y.dtype == last.dtype == f.parameters["h"].dtype
    assert (y == want["h"]).all(), case
    assert (last == want["h"][-1]).all(), case
    assert (v == np.concatenate([want[part] for part in INTERMEDIATE], -1)).all(), case


@pytest.mark.slow
@quiet
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", ["first", "drawn"])
def test_a_launch(case, monkeypatch, fresh):
    run(monkeypatch, CASES[6] if case == "first" else CASES[fresh.integers(len(CASES))], fresh)


def names(state):
    """Launches since the last look, and their streams."""
    found, state.launches[:] = [(each[0], each[-1]) for each in state.launches], []
    return found


@pytest.mark.slow
@quiet
def test_launches(monkeypatch, fresh):
    """Four a direction, prepared once; the second direction beside the first where both fit; in a graph."""
    state = put_emulated(monkeypatch)
    put, rows = state.cupy.asarray, slice(None, None, 2)
    f, _, x = cases.fixed(fresh, 1, 2, 5, 7, "int8", both=True)
    for multiprocessors, side, factors in ((132, 98, (1, -0.7)), (3, 99, (1,))):
        monkeypatch.setattr(device, "multiprocessors", lambda count=multiprocessors: count)
        gpu = on_card(f)
        for factor in factors:
            h0 = (factor * fresh.uniform(-0.4, 0.4, (4, 2, 7))).astype(np.float32)[rows]
            want = f(factor * x, h0, batch_first=False, return_codes=True)
            x_first = put((factor * x).swapaxes(0, 1))
            y, h = gpu(x_first, put(h0), batch_first=True, return_codes=True, kernel="cuda:cluster")
            assert (np.asarray(y).swapaxes(0, 1) == want[0]).all()
            assert (np.asarray(h) == want[1]).all()
            found = names(state)
            assert len(found) == (10 if side == 98 else 8)
            assert sorted(stream for name, stream in found if "waits" not in name) == sorted([99, side] * 4)
    # One direction, whose lists serve again, and another kind of h0.
    f, _, x = cases.fixed(fresh, 2, 3, 5, 7, "mixed")
    gpu = on_card(f)
    for kind in (np.float32, np.float64):
        h0 = fresh.uniform(-3, 3, (3, 7)).astype(kind)
        f.warned = gpu.warned = True
        want, (y, h) = f(x, h0), gpu(put(x), put(h0), kernel="cuda:cluster")
        assert (np.asarray(y) == want[0]).all()
        assert (np.asarray(h) == want[1]).all()
        assert [stream for _, stream in names(state)] == [99] * 4
    saturated = [{n: use.saturated for n, use in each.diagnostics().items()} for each in (f, gpu)]
    assert saturated[0] == saturated[1]
    assert saturated[0]["h0"]
    lists = [value for key, value in f.cells[0].cache.items() if key[0] == "cuda launches"]
    assert [len(each) for each in lists] == [1, 1]
    state.capturing, state.recording = True, []
    y, h = gpu(put(x), kernel="cuda:cluster")
    state.capturing, recorded, state.recording = False, state.recording, None
    for each in recorded:
        each()
    assert (np.asarray(y) == f(x)[0]).all()
    assert (np.asarray(h) == f(x)[1]).all()


@pytest.mark.slow
def test_calls(monkeypatch, fresh):
    """Floats, both directions, dynamic x, counts; no steps; and what is refused."""
    state = put_emulated(monkeypatch)
    put = state.cupy.asarray
    f, g, x = cases.fixed(fresh, 3, 2, 5, 7, "int8", both=True)
    f.warned = True
    for how in ({}, {"dynamic_x": True, "rounding": "half_even"}):
        f = g.fixed("int8", **how)
        f.warned, gpu = True, on_card(f)
        gpu.warned = True
        far = 2 * x.astype(np.float64 if how else np.float32)
        host, device = f(far), gpu(put(far), kernel="cuda:cluster")
        assert all((a == np.asarray(b)).all() for a, b in zip(host, device, strict=True))
        for one, two in zip(f.diagnostics(), gpu.diagnostics(), strict=True):
            assert [each.saturated for each in one.values()] == [each.saturated for each in two.values()]
    gpu = on_card(f)
    y, h = gpu(put(x[:0]))
    assert y.shape == (0, 2, 14)
    assert not np.asarray(h).any()
    assert gpu(put(x.swapaxes(0, 1)[:0]), batch_first=True)[0].shape == (0, 3, 14)
    with pytest.raises(DeviceError, match="x is on cpu"):
        gpu(x)
    with pytest.raises(DeviceError, match="h0 is on cpu"):
        gpu(put(x), np.zeros((2, 2, 7)))
    with pytest.raises(UnsupportedError, match="not the one asked for"):
        on_card(g.fixed("int16"))(put(x), kernel="cuda:cluster")
    y, x = x.copy(), x.copy()
    x[1, 0, 3] = np.inf
    with pytest.raises(NonFiniteError, match=r"x\[1, 0, 3\] is inf"):
        on_card(g.fixed("int8"))(put(x), kernel="cuda:cluster")
    with pytest.raises(NonFiniteError, match="h0"):
        gpu(put(y), put(np.full((2, 2, 7), np.nan)))
