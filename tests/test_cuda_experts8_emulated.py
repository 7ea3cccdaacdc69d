"""Experts of 8-bit codes on an emulated card: the rung's own launches against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device
from test_cuda_experts_emulated import ids_of
from test_cuda_scaled_emulated import on_card
from test_cuda_scaled_linear import error, scaled

import ggmlq as gq
from ggmlq.cuda.kernels.codes8.tiles import (
    EXPERT_COLUMN_SCALE_TILES,
    EXPERT_FLOAT_TILES,
    EXPERT_INTEGER_TILES,
    LOW,
    BoxTile,
)
from ggmlq.cuda.ladder.expert_linear.r6_grouped_codes import tile_for
from ggmlq.cuda.ladder.expert_linear.r7_small_m_codes import TILES, Cut
from ggmlq.cuda.layouts import groups
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import ExpertLinear, Operand

RUNGS = {r.name: r for r in gq.kernels("expert_linear", device="cuda")}
RUNG, FEW = RUNGS["cuda:grouped_codes"], RUNGS["cuda:small_m_codes"]
GROUPS, ROWS, TENSORS, BLOCKS = (1, 128), (1, None), (None, None), (128, 128)
FP8, INTS = ("e4m3", "e4m3"), ("int8", "int8")
TALL, LONG, WIDE = BoxTile(256, 128, 4), BoxTile(128, 192, 5), BoxTile(128, 256, 4)
SQUARE = BoxTile(128, 128, 6)
H200 = Card("NVIDIA H200", (9, 0), 132, 227 << 10)
FIRST = ("spread", 9, 2, 3, 256, 272, FP8, (GROUPS, BLOCKS), False, "spread", None, False)
ODD = ("odd rows", 5, 2, 3, 130, 256, FP8, (GROUPS, BLOCKS), True, "none", LOW, False)
STAY = ("rows stay", 70, 1, 4, 130, 272, FP8, (GROUPS, BLOCKS), False, "in order", LOW, False)
# T, U, E, N, K, codes, tiles, rows of x for each use, ids, tile, zero points
MORE = [
    ("one high tile", 100, 3, 4, 140, 400, ("e5m2", "e4m3"), (GROUPS, (140, 128)), False, "one", TALL, False),
    ("a scale a channel", 40, 2, 3, 101, 300, FP8, (ROWS, ROWS), True, "none", SQUARE, False),
    ("tiles over experts", 30, 2, 4, 50, 256, FP8, (GROUPS, BLOCKS), False, "spread", LOW, False),
    ("long", 70, 2, 5, 256, 3200, ("e4m3", "e5m2"), ((1, 384), BLOCKS), True, "none", LONG, False),
    ("a tensor", 20, 1, 2, 70, 128, FP8, (TENSORS, TENSORS), False, "one", LOW, False),
    ("many steps in turns", 12, 2, 3, 128, 128 * 26, FP8, ((3, 128), (64, 128)), False, "none", TALL, False),
    ("groups filled up", 19, 2, 6, 12, 328, FP8, ((5, 256), (128, None)), False, "one", SQUARE, False),
    ("many stay", 150, 2, 3, 60, 256, FP8, (GROUPS, GROUPS), True, "in order", SQUARE, False),
    ("in order", 30, 2, 3, 60, 256, FP8, (GROUPS, GROUPS), False, "in order", LOW, False),
    ("integers stay", 40, 2, 3, 31, 300, ("uint8", "int8"), (ROWS, ROWS), True, "in order", LOW, True),
    ("integers", 40, 2, 3, 131, 300, INTS, (ROWS, ROWS), False, "none", WIDE, False),
    ("by expert", 30, 3, 5, 60, 144, ("uint8", "int8"), (TENSORS, (60, None)), True, "spread", LOW, False),
    ("zero points", 30, 3, 4, 75, 270, ("uint8", "int8_full"), (ROWS, ROWS), False, "none", LOW, True),
    ("several", 9, 2, 3, 260, 128, ("int8", "uint8"), ((2, None), (10, None)), True, "one", SQUARE, True),
]  # fmt: skip

DEEP, FLAT = TILES
FEW_FIRST = ("few", 3, 2, 4, 80, 272, FP8, (GROUPS, BLOCKS), False, "spread", Cut(DEEP, 2), False)
FULL = "uint8", "int8_full"
FEW_ZEROS = ("zero points", 6, 2, 4, 75, 270, FULL, (ROWS, ROWS), True, "none", Cut(FLAT, 1), True)
FEW_MORE = [
    ("one row", 1, 3, 5, 64, 128, FP8, (ROWS, ROWS), False, "none", Cut(FLAT, 1), False),
    ("many uses", 12, 1, 2, 70, 400, ("e5m2", "e4m3"), (GROUPS, GROUPS), True, "one", Cut(FLAT, 2), False),
    ("over experts", 5, 2, 4, 50, 256, FP8, (GROUPS, BLOCKS), False, "spread", Cut(DEEP, 1), False),
    ("in four", 9, 2, 3, 130, 128 * 9, FP8, ((3, 128), (64, 128)), False, "spread", Cut(FLAT, 4), False),
    ("more", 33, 2, 3, 66, 128, ("e4m3", "e5m2"), ((1, 384), BLOCKS), True, "none", Cut(DEEP, 1), False),
    ("long", 2, 2, 3, 40, 128 * 35, FP8, (GROUPS, (40, 128)), False, "none", Cut(FLAT, 1), False),
    ("integers", 4, 3, 5, 101, 300, INTS, (ROWS, ROWS), False, "spread", Cut(DEEP, 2), False),
    FEW_ZEROS,
]  # fmt: skip


def product(state, case, rng, kind=np.float32):
    """The outputs, whose surroundings must stay as they are, the right ones, and which uses are lost."""
    _, t, u, e, n, k, codes, tiles, apart, spread, tile, zeros = case
    order = rng.choice(["rows", "columns"])
    x = scaled(rng, codes[0], tiles[0], t * u if apart else t, k, zeros, order)
    flat = scaled(rng, codes[1], tiles[1], e * n, k, zeros, order)
    w = gq.ScaledArray(flat.codes.reshape(e, n, k), flat.scales, flat.code, flat.tile, flat.zeros)
    ids = ids_of(spread, t, u, e, rng)
    y = on_device(np.full((ids.size + 2, n), 7, kind))
    given, ids_there = (on_card(x), on_card(w)), on_device(ids.astype(np.int64))
    for array in (*given[0].parts(), *given[1].parts(), y, ids_there):
        state.memory.add(array)
    rung, way = (FEW, "cut") if isinstance(tile, Cut) else (RUNG, "tile")
    rung.launch(*given, ids_there, y[1:-1].reshape(t, u, n), **{way: tile})
    assert (y[[0, -1]] == 7).all(), "written past its outputs"
    lost = (ids < 0) | (ids >= e)
    rows = x
    if apart:
        rows = gq.ScaledArray(x.codes.reshape(t, u, k), x.scales, x.code, x.tile, x.zeros)
    want = gq.reference.expert_linear(rows, w, np.where(lost, 0, ids))
    return np.asarray(y[1:-1]).reshape(t, u, n), want, lost


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", [FIRST, ODD, STAY, "drawn"], ids=["spread", "odd rows", "stay", "drawn"])
def test_products(case, monkeypatch, fresh):
    case = MORE[fresh.integers(len(MORE))] if case == "drawn" else case
    y, want, lost = product(put_emulated(monkeypatch), case, fresh)
    assert np.isnan(y[lost]).all()
    assert error(y[~lost], want[~lost].astype(np.float32)) <= 1e-6, case[0]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", [FEW_FIRST, FEW_ZEROS, "drawn"], ids=["few", "zero points", "drawn"])
def test_few_tokens(case, monkeypatch, fresh):
    case = FEW_MORE[fresh.integers(len(FEW_MORE))] if case == "drawn" else case
    test_products(case, monkeypatch, fresh)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", [FIRST, ODD, FEW_FIRST], ids=["whole pieces", "odd rows", "few"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_results(kind, case, monkeypatch, fresh):
    """What the kernel rounds is what float32 results would be rounded to."""
    kind = np.dtype(getattr(pytest.importorskip("ml_dtypes"), kind, kind))
    state, seed = put_emulated(monkeypatch), int(fresh.integers(1 << 30))
    wide, _, lost = product(state, case, np.random.default_rng(seed))
    y, _, _ = product(state, case, np.random.default_rng(seed), kind)
    assert np.isnan(y[lost].astype(np.float32)).all()
    with np.errstate(over="ignore"):
        assert np.array_equal(y[~lost], wide[~lost].astype(kind))


# --- the host ---------------------------------------------------------------------------------


def test_what_it_refuses():
    x, w = Operand("e4m3", 1, 128), Operand("e4m3", 128, 128)

    def said(w=w, x=x, t=64, e=128, k=2048, card=H200):
        return RUNG.refuses(ExpertLinear(w, t, 8, e, 768, k, x, device="cuda", card=card)) or ""

    assert said() == said(w=Operand("e4m3", 768, 2048)) == said(w=Operand("e5m2", 7, 128)) == ""
    whole = Operand("int8", 1, 2048)
    assert said(whole, whole) == said(whole, Operand("uint8", 3, 2048, True)) == ""
    assert "multiplies codes with scales" in said(gq.formats["q4_0"], None)
    assert "9.0" in said(card=Card("a later one", (10, 0), 132, 227 << 10))
    assert "128 columns of K" in said(x=Operand("e4m3", 1, 64))
    assert "do not vary along K" in said(Operand("int8", 1, 128), Operand("int8", 1, 128))
    assert "16" in said(Operand("int16", 1, 2048), Operand("int16", 1, 2048))
    assert "1 to 4096 experts" in said(e=5000)
    assert "1 to 4096 experts" in said(e=0)
    assert "2**36" in said(t=1 << 24)
    assert "2**31" in said(t=1 << 28, k=16)


def test_which_tile():
    """Few uses an expert: low tiles; many: those that fetch the least."""

    def rows(shares, t, u=8, e=128, n=768):
        return tile_for(shares, t, u, e, n, 132).rows

    assert [rows(EXPERT_FLOAT_TILES, t) for t in (1, 64, 512, 4096)] == [64, 64, 64, 128]
    assert rows(EXPERT_FLOAT_TILES, 8192, 1, 4, 4096) == 256
    assert [rows(EXPERT_COLUMN_SCALE_TILES, t) for t in (8, 4096)] == [64, 128]
    assert tile_for(EXPERT_INTEGER_TILES, 8192, 1, 4, 4096, 132) == WIDE
    for tile in (LOW, TALL):
        uses = np.random.default_rng(0).multinomial(4096, [1 / 128] * 128, 50)
        seen = (-(-uses // tile.rows)).mean()
        assert abs(groups.expected_slots(4096, 1, 128, tile.rows) - seen) < 0.1
