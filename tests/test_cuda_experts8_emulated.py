"""Experts of 8-bit codes on an emulated card: the rung's own launches against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device
from test_cuda_experts_emulated import ids_of
from test_cuda_scaled_emulated import on_card
from test_cuda_scaled_linear import error, scaled

import ggmlq as gq
from ggmlq.cuda.pipeline.boxed import BoxTile
from ggmlq.cuda.pipeline.grouped8 import LOW

RUNG = next(r for r in gq.kernels("expert_linear", device="cuda") if r.name == "cuda:grouped_codes")
GROUPS, ROWS, TENSORS, BLOCKS = (1, 128), (1, None), (None, None), (128, 128)
FP8, INTS = ("e4m3", "e4m3"), ("int8", "int8")
TALL, LONG, WIDE = BoxTile(256, 128, 4), BoxTile(128, 192, 5), BoxTile(128, 256, 4)
SQUARE = BoxTile(128, 128, 6)
FIRST = ("spread", 9, 2, 3, 256, 272, FP8, (GROUPS, BLOCKS), False, "spread", None, False)
# T, U, E, N, K, codes, tiles, rows of x for each use, ids, tile, zero points
MORE = [
    ("one high tile", 100, 3, 4, 140, 400, ("e5m2", "e4m3"), (GROUPS, (140, 128)), False, "one", TALL, False),
    ("a scale a channel", 40, 2, 3, 101, 300, FP8, (ROWS, ROWS), True, "none", SQUARE, False),
    ("tiles over experts", 30, 2, 4, 50, 256, FP8, (GROUPS, BLOCKS), False, "spread", LOW, False),
    ("long", 70, 2, 5, 256, 3200, ("e4m3", "e5m2"), ((1, 384), BLOCKS), True, "none", LONG, False),
    ("a tensor", 20, 1, 2, 70, 128, FP8, (TENSORS, TENSORS), False, "one", LOW, False),
    ("many steps in turns", 12, 2, 3, 128, 128 * 26, FP8, ((3, 128), (64, 128)), False, "none", TALL, False),
    ("integers", 40, 2, 3, 131, 300, INTS, (ROWS, ROWS), False, "none", WIDE, False),
    ("by expert", 30, 3, 5, 60, 144, ("uint8", "int8"), (TENSORS, (60, None)), True, "spread", LOW, False),
    ("zero points", 30, 3, 4, 75, 270, ("uint8", "int8_full"), (ROWS, ROWS), False, "none", SQUARE, True),
    ("more zero points", 9, 2, 3, 260, 128, ("int8", "uint8"), ((2, None), (10, None)), True, "one", WIDE, True),
]  # fmt: skip


def product(state, case, rng):
    """The outputs, whose surroundings must stay as they are, the right ones, and which uses are lost."""
    _, t, u, e, n, k, codes, tiles, apart, kind, tile, zeros = case
    order = rng.choice(["rows", "columns"])
    x = scaled(rng, codes[0], tiles[0], t * u if apart else t, k, zeros, order)
    flat = scaled(rng, codes[1], tiles[1], e * n, k, zeros, order)
    w = gq.ScaledArray(flat.codes.reshape(e, n, k), flat.scales, flat.code, flat.tile, flat.zeros)
    ids = ids_of(kind, t, u, e, rng)
    y = on_device(np.full((ids.size + 2, n), 7, np.float32))
    given, ids_there = (on_card(x), on_card(w)), on_device(ids.astype(np.int64))
    for array in (*given[0].parts(), *given[1].parts(), y, ids_there):
        state.memory.add(array)
    more = {} if tile is None else {"tile": tile}
    RUNG.launch(*given, ids_there, y[1:-1].reshape(t, u, n), **more)
    assert (y[[0, -1]] == 7).all(), "written past its outputs"
    lost = (ids < 0) | (ids >= e)
    rows = x
    if apart:
        rows = gq.ScaledArray(x.codes.reshape(t, u, k), x.scales, x.code, x.tile, x.zeros)
    want = gq.reference.expert_linear(rows, w, np.where(lost, 0, ids))
    return np.asarray(y[1:-1]).reshape(t, u, n), want, lost


@pytest.mark.parametrize("case", [FIRST, *MORE], ids=lambda case: case[0])
def test_products(case, monkeypatch, fresh):
    y, want, lost = product(put_emulated(monkeypatch), case, fresh)
    assert np.isnan(y[lost]).all()
    assert error(y[~lost], want[~lost].astype(np.float32)) <= 1e-6, case[0]
