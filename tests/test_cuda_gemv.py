"""cuda:gemv: how blocks share tiles, and its kernels on an emulated card."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import addends, put_emulated
from emulated_packed import pack_q4_0
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.cost.gemv import GemvShape, GemvSplit, best_split
from ggmlq.cuda.kernels.gemv import launch as _gemv
from ggmlq.cuda.kernels.gemv.stages import (
    ALONE,
    FOUR,
    HOPPER_SHARED,
    TWO,
    GemvStage,
    SplitBlocks,
    columns_of,
    kinds_of,
)
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.cuda.layouts.pack import PackedWeights
from ggmlq.dispatch.epilogue import Epilogue
from ggmlq.formats import BLOCK_FORMATS

RUNG, INT16 = (
    next(each for each in gq.kernels(device="cuda") if each.name == name)
    for name in ("cuda:gemv", "cuda:gemv_int16")
)
CASES = [  # M, N, K, blocks
    (1, 70, 768, SplitBlocks(3, 1)),
    (3, 33, 512, SplitBlocks(2, 2)),
    (8, 40, 1088, SplitBlocks(4, 1)),
    (2, 64, 320, SplitBlocks(1, 4)),
    (12, 50, 640, SplitBlocks(4, 2)),
    (5, 70, 512, ALONE),
]
WIDE = [  # the same with four fragment rows a block: all columns and splits, and N that fill no block
    (3, 70, 1088, SplitBlocks(3, 1)),
    (8, 130, 768, SplitBlocks(1, 2)),
    (12, 33, 1344, SplitBlocks(1, 2)),
    (16, 200, 640, ALONE),
    (1, 70, 320, SplitBlocks(4, 2)),
    (6, 97, 1152, ALONE),
    (2, 129, 576, SplitBlocks(2, 1)),
]


SHORT = (2, 40, 32, ALONE), (8, 40, 64, ALONE), (12, 40, 32, ALONE)


LAUNCHES = [(case, TWO) for case in (CASES[0], "drawn", *SHORT)]
LAUNCHES += [pytest.param(c, FOUR, marks=pytest.mark.slow) for c in (*WIDE[:3], "drawn", *SHORT[1:])]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("case", "fragment_rows"), LAUNCHES, ids=str)
def test_a_launch(case, fragment_rows, monkeypatch, fresh):
    """Short rows of powers of two are the hardest for what tensor cores cut off."""
    others = CASES[1:] if fragment_rows == TWO else WIDE[3:]
    case = others[fresh.integers(len(others))] if case == "drawn" else case
    assert_right(case, fragment_rows, monkeypatch, fresh)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("fragment_rows", [TWO, FOUR])
@pytest.mark.parametrize("case", [CASES[0], WIDE[4], (1, 40, 32, ALONE), (1, 70, 448, ALONE)])
def test_a_launch_with_integers(case, fragment_rows, monkeypatch, fresh):
    assert_right(case, fragment_rows, monkeypatch, fresh, INT16)


def assert_right(case, fragment_rows, monkeypatch, fresh, rung=RUNG):
    m, n, _, blocks = case
    kind = "powers_of_two" if case in SHORT else "normal"
    state, host, q, x = operands(case, kind, monkeypatch, fresh)
    y = on_device(np.full((m + 2, n), np.nan, np.float32))
    state.memory.add(y)
    more = n % 2 == 0 and bool(fresh.integers(2))  # a residual has rows of even length
    end, added, sizes = addends((m, n), state.memory, fresh) if more else (Epilogue(), 0, 0)
    rung.launch(x, q, y[1:-1], split=GemvSplit(fragment_rows, blocks), end=end)
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    product = gq.reference.linear(np.asarray(x), host, rung.arithmetic)
    limit = gq.reference.bound(np.asarray(x), host, rung.arithmetic)
    limit = limit + 2.0**-19 * (np.abs(product) + sizes) * more  # a residual is one of some 30 sums
    assert (np.abs(np.asarray(y[1:-1]) - (product + added)) <= limit).all()


def operands(case, kind, monkeypatch, fresh):
    """A card that runs PTX, weights on the host and there, and activations there."""
    m, n, k, _ = case
    state, host = put_emulated(monkeypatch), weights("q4_0", n, k, int(fresh.integers(1 << 30)))
    fragments, layout = pack_q4_0(host)
    fragments, x = on_device(fragments), on_device(rows(kind, m, k, int(fresh.integers(1 << 30))))
    monkeypatch.setattr(_gemv, "packed_weights", lambda q: PackedWeights(fragments, layout))
    monkeypatch.setattr(device, "older_than", lambda least: None)
    monkeypatch.setattr(device, "room", lambda: 227 << 10)
    for array in (fragments, x):
        state.memory.add(array)
    return state, host, gq.QuantArray(host.format, (n, k), on_device(host.raw)), x


def test_halves_in_and_out(monkeypatch, fresh):
    """The bits of float32, with the bias added, rounded once."""
    case = (2, 40, 96, ALONE)
    state, _, q, x = operands(case, "normal", monkeypatch, fresh)
    halves, bias = (
        on_device(np.asarray(x).astype(np.float16)),
        on_device(np.linspace(-1, 1, 40, dtype=np.float32)),
    )
    x, y = on_device(np.asarray(halves).astype(np.float32)), on_device(np.zeros((2, 40), np.float32))
    short = on_device(np.zeros((2, 40), np.float16))
    for array in (halves, bias, x, y, short):
        state.memory.add(array)
    RUNG.launch(x, q, y, split=GemvSplit(TWO, ALONE))
    RUNG.launch(halves, q, short, split=GemvSplit(TWO, ALONE), end=Epilogue(bias))
    assert np.array_equal(np.asarray(short), (np.asarray(y) + np.asarray(bias)).astype(np.float16))


def test_wide_blocks_find_room():
    """Wide blocks fit on Hopper for any format, with no more splits than have a place for their sums."""
    for fmt in BLOCK_FORMATS:
        for columns in columns_of(FOUR):
            for small in kinds_of(FOUR, columns):
                stage = _gemv.stage_in(layout_of(fmt), columns, HOPPER_SHARED, True, small, FOUR)
                assert stage.blocks * stage.shared <= HOPPER_SHARED
                assert stage.most_splits == (4 if small and columns <= 4 else 1)


def test_a_split_is_found_for_any_shape(fresh):
    """A split has no more parts than its stage has places for, nor blocks than a multiprocessor holds."""
    for _ in range(200):
        layout = layout_of(BLOCK_FORMATS[fresh.integers(len(BLOCK_FORMATS))])
        sms = int(fresh.integers(8, 200))
        height, m = 8 * int(fresh.integers(1, 1500)), int(fresh.integers(1, 33))
        wide = bool(fresh.integers(2))
        us, (fragment_rows, blocks) = best_split(
            GemvShape(layout, height, 256 * int(fresh.integers(1, 120)), m, sms, wide=wide)
        )
        assert us > 0
        assert fragment_rows == TWO or wide
        if blocks != ALONE:
            columns = next(columns for columns in columns_of(fragment_rows) if columns >= m)
            stage = GemvStage(layout, columns, 2, True, fragment_rows)
            assert blocks.splits <= stage.most_splits
            assert blocks.most <= stage.blocks
    plain = layout_of(BLOCK_FORMATS[0])
    found = {m: best_split(GemvShape(plain, 256, 4096, m, 132))[1] for m in (1, 8, 32)}
    assert set(found.values()) == {GemvSplit(TWO, ALONE)}, "a tile for each multiprocessor"
    assert best_split(GemvShape(plain, 56, 14336, 1, 132))[1] == GemvSplit(TWO, SplitBlocks(7, 2)), (
        "few tiles"
    )
    assert best_split(GemvShape(plain, 1792, 8192, 16, 132))[1].fragment_rows == FOUR
