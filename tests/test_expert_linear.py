"""Products with experts: every format and kernel against the oracle, edges, errors, what is kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.threads import num_threads
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.reference.metrics import nmse

RUNGS = gq.kernels("expert_linear", device="cpu")
FLOATS = [FORMATS[name] for name in ("f32", "f16", "bf16")]


@pytest.fixture
def blocks(drawn_formats):
    return [FORMATS[name] for name in sorted(drawn_formats)]


def experts_of(fmt, shape, rng):
    """Weights [E, N, K] that nobody can write to."""
    e, n, k = shape
    if not isinstance(fmt, BlockFormat):
        return gq.quantize(rng.standard_normal(shape, np.float32), fmt)
    blocks = random_blocks(fmt, e * n, k // fmt.block_size, int(rng.integers(1 << 31)))
    return gq.QuantArray.from_bytes(np.ascontiguousarray(blocks).tobytes(), fmt, shape)


def mixture(rng, t, u, e, skew=None):
    """Ids with duplicates and unused experts; ``skew``: so many of all uses go to the first."""
    ids = rng.integers(0, max(1, e - 1), (t, u))
    if skew is not None:
        ids[rng.random((t, u)) < skew] = 0
    return ids.astype(rng.choice([np.int8, np.int32, np.uint16, np.int64, np.uint64]))


def close(y, x, q, ids, arithmetic, most=1e-11):
    """Like nmse, but beside the size of the terms at least: a few results may all but cancel."""
    want = gq.reference.expert_linear(x, q, ids, arithmetic)
    assert y.shape == want.shape
    rows = np.asarray(x, np.float64)
    rows = rows if rows.ndim == 3 else rows[:, None]
    size = np.einsum("tuk,tunk->", rows**2, q.dequantize(np.float64)[ids.astype(int)] ** 2)
    assert ((y - want) ** 2).sum() <= most * max((want**2).sum(), size)


def test_formats(fresh, blocks):
    """Some of all in each run: a kernel is compiled for each."""
    for fmt in (*fresh.choice(blocks, 1), *FLOATS):
        try_format(fmt, fresh)


def test_every_format_expert_by_expert(fresh, blocks):
    for fmt in fresh.choice(blocks, min(3, len(blocks)), replace=False):
        try_format(fmt, fresh, kernel="cpu:each")


def try_format(fmt, fresh, **choice):
    k = max(fmt.block_size, 32) * int(fresh.integers(1, 3))
    t, u, e, n = (int(fresh.integers(1, most)) for most in (12, 5, 7, 50))
    q, ids = experts_of(fmt, (e, n, k), fresh), mixture(fresh, t, u, e)
    apart = bool(fresh.integers(2))
    x = fresh.standard_normal((t, u, k) if apart else (t, k)).astype(np.float32)
    y = gq.expert_linear(x, q, ids, **choice)
    assert y.dtype == np.float32
    close(y, x, q, ids, "q8" if isinstance(fmt, BlockFormat) and not choice else "f32")


@pytest.mark.parametrize("rung", [r for r in RUNGS if r.arithmetic != "codes"], ids=lambda r: r.name)
def test_kernels(rung, fresh):
    name, e, n, k, u = "q4_K", 5, 37, 512, 3
    q = experts_of(FORMATS[name], (e, n, k), fresh)
    for t, skew in ((1, None), (8, 0.5), (65, None), (97, 0.9)):
        ids, x = mixture(fresh, t, u, e, skew), fresh.standard_normal((t, k)).astype(np.float32)
        y = gq.expert_linear(x, q, ids, kernel=rung.name)
        close(y, x, q, ids, rung.arithmetic)
        by_hand = np.stack([gq.linear(x[i], q[int(e)], arithmetic=rung.arithmetic) for i in range(t)
                            for e in ids[i]]).reshape(y.shape)  # fmt: skip
        assert nmse(y, by_hand) <= 1e-11


def test_one_row_a_token_is_one_row_a_use(fresh):
    q, ids = experts_of(FORMATS["q4_K"], (4, 33, 256), fresh), mixture(fresh, 9, 4, 4)
    x = fresh.standard_normal((9, 256)).astype(np.float32)
    both = gq.expert_linear(x, q, ids), gq.expert_linear(np.repeat(x[:, None], 4, axis=1), q, ids)
    assert np.array_equal(*both)


def test_work_units_cover_every_panel(fresh):
    """Cuts of equal cost leave no panel out and do none twice, however uses are spread."""
    from ggmlq.cpu.grouped.product import READ, cut

    for _ in range(200):
        rows = fresh.integers(1, 200, int(fresh.integers(0, 9))) ** int(fresh.integers(1, 3))
        panels, cuts = int(fresh.integers(1, 50)), np.empty(int(fresh.integers(2, 70)), np.int64)
        cut(rows, panels, cuts)
        assert (cuts[0], cuts[-1]) == (0, panels * len(rows))
        assert (np.diff(cuts) >= 0).all()
        cost = np.repeat(READ + rows, panels)
        parts = [cost[a:b].sum() for a, b in pairwise(cuts)]
        assert max(parts, default=0) <= cost.sum() / len(parts) + 2 * cost.max(initial=0)


def test_many_rows_an_expert_go_in_chunks(fresh, monkeypatch):
    from ggmlq.cpu.grouped import multiply

    monkeypatch.setattr(multiply, "X_BYTES", 1)  # 64 rows at a time
    q, ids = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh), mixture(fresh, 150, 2, 3, 0.8)
    x = fresh.standard_normal((150, 256)).astype(np.float32)
    close(gq.expert_linear(x, q, ids), x, q, ids, "q8")


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads, fresh):
    before = num_threads()
    gq.set_num_threads(threads)
    try:
        q, ids = experts_of(FORMATS["q4_K"], (6, 70, 256), fresh), mixture(fresh, 40, 2, 6)
        x = fresh.standard_normal((40, 256)).astype(np.float32)
        close(gq.expert_linear(x, q, ids), x, q, ids, "q8")
    finally:
        gq.set_num_threads(before)


# --- codes with scales --------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "tile"), [("e4m3", (128, 128)), ("e5m2", (1, 128)), ("int8", (1, None)),
                                            ("int8", (16, 32)), ("e4m3", (7, 64))])  # fmt: skip
@pytest.mark.parametrize("apart", [False, True])
def test_scaled(code, tile, apart, fresh):
    e, n, k, t, u = 4, 32, 256, 11, 3
    q = gq.quantize_scaled(fresh.standard_normal((e, n, k)), code, tile)
    ids = mixture(fresh, t, u, e, 0.4)
    x = fresh.standard_normal((t, u, k) if apart else (t, k)).astype(np.float32)
    y = gq.expert_linear(x, q, ids)
    for i in range(t):
        for j in range(u):
            row = x[i, j] if apart else x[i]
            want = gq.scaled_linear(row, q[int(ids[i, j])])
            np.testing.assert_allclose(y[i, j], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    usual = (1, None) if code == "int8" else (1, min(128, tile[1] or 128))
    given = gq.quantize_scaled(x, code, usual)
    close(gq.expert_linear(given, q, ids), given, q, ids, "exact", 1e-9)


def test_scales_of_whole_experts(fresh):
    """One scale an expert: tiles of N rows."""
    w = fresh.standard_normal((3, 24, 64)) * np.array([1, 100, 0.01])[:, None, None]
    q = gq.quantize_scaled(w, "int8", (24, None))
    assert q.scales.shape == (3, 1)
    x, ids = fresh.standard_normal((5, 64)).astype(np.float32), mixture(fresh, 5, 2, 3)
    close(gq.expert_linear(x, q, ids), x, q, ids, "exact", 1e-3)


# --- edges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)])
def test_nothing_to_do(shape, fresh):
    q = experts_of(FORMATS["q4_0"], (2, 5, 32), fresh)
    y = gq.expert_linear(np.ones((shape[0], 32), np.float32), q, np.zeros(shape, np.int32))
    assert (y.shape, y.dtype) == ((*shape, 5), np.float32)
    assert gq.reference.expert_linear(np.ones((shape[0], 32)), q, np.zeros(shape, int)).shape == (*shape, 5)


@pytest.mark.parametrize(("e", "n", "k"), [(0, 5, 32), (2, 0, 32), (2, 5, 0)])
def test_empty_weights(e, n, k):
    q = gq.quantize(np.ones((e, n, k), np.float32), "q4_0")
    t = 3 if e else 0
    y = gq.expert_linear(np.ones((t, k), np.float32), q, np.zeros((t, 1), int))
    assert y.shape == (t, 1, n)
    assert not y.any()
    with pytest.raises(gq.GGMLQError, match=r"ids\[0, 0\] is 2"):
        gq.expert_linear(np.ones((1, k), np.float32), q, [[2]])


def test_results_as_asked(fresh):
    q, ids = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh), mixture(fresh, 6, 2, 3)
    x = fresh.standard_normal((6, 256))
    y = gq.expert_linear(x, q, ids)
    assert gq.expert_linear(x, q, ids.tolist(), dtype=np.float64).dtype == np.float64
    for out in (np.empty((6, 2, 20), np.float32), np.empty((6, 2, 20)), np.empty((6, 2, 40), "f4")[..., ::2]):
        assert gq.expert_linear(x, q, ids, out=out) is out
        assert np.array_equal(out.astype(np.float32), y)
    assert np.array_equal(gq.expert_linear(x.astype(np.float16), q, ids[:, ::-1]).shape, y.shape)
    memory = np.zeros((6, 2, 256), np.float32)  # out over x
    memory[:, 0] = x
    over = gq.expert_linear(memory[:, 0], q, ids, out=memory[..., :20])
    assert nmse(over, y) < 1e-12


def test_ids_that_are_no_expert(fresh):
    q, x = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh), fresh.standard_normal((4, 256)).astype("f4")
    for name in ("cpu:panels", "cpu:tiles", "cpu:each"):
        ids = np.array([[0, 3], [-1, 1], [2, 2], [2**62, 0]])
        y = gq.expert_linear(x, q, ids, check=False, kernel=name)
        assert np.array_equal(np.isnan(y).all(axis=-1), (ids < 0) | (ids > 2))
        assert np.isnan(y).any(axis=-1).sum() == 3
    y = gq.expert_linear(x, q, np.full((4, 1), 2**64 - 1, np.uint64), check=False)
    assert np.isnan(y).all()


@pytest.mark.parametrize(("change", "match"), [
    ({"ids": np.zeros((4, 2))}, "ids are float64; they are numbers of experts"),
    ({"ids": np.zeros((4, 2), bool)}, "ids are bool"),
    ({"ids": np.zeros((5, 2), int)}, r"x has shape \(4, 256\), q \(3, 20, 256\), ids \(5, 2\)"),
    ({"ids": np.zeros(4, int)}, r"ids have shape \(4,\); they are \[T, U\]"),
    ({"ids": [[0], [1, 2]]}, "ids"),
    ({"ids": np.full((4, 2), 3)}, r"ids\[0, 0\] is 3; q has 3 experts"),
    ({"ids": np.full((4, 2), -1, np.int8)}, r"ids\[0, 0\] is -1"),
    ({"x": np.ones((4, 32), "f4")}, "the last axis of both is K"),
    ({"x": np.ones((4, 3, 256), "f4")}, "a row for each token"),
    ({"x": np.ones((4, 256), int)}, "x is int64"),
    ({"q": np.ones((3, 20, 64))}, "must be a QuantArray or a ScaledArray"),
    ({"kernel": "cpu:none"}, "there is no such kernel"),
    ({"kernel": "cpu:codes"}, "it multiplies codes with scales"),
    ({"arithmetic": "bf16"}, "bf16 was asked for"),
    ({"out": np.empty((4, 20), "f4")}, r"out has shape \(4, 20\), the result \(4, 2, 20\)"),
    ({"dtype": np.int32}, "values are floats"),
])  # fmt: skip
def test_errors(change, match, fresh):
    given = {"x": np.ones((4, 256), "f4"), "q": experts_of(FORMATS["q4_K"], (3, 20, 256), fresh)}
    given |= {"ids": np.zeros((4, 2), int)} | change
    with pytest.raises(gq.GGMLQError, match=match):
        gq.expert_linear(given.pop("x"), given.pop("q"), given.pop("ids"), **given)


def test_a_matrix_is_no_mixture(fresh):
    q = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh)
    with pytest.raises(gq.GGMLQError, match="linear takes a matrix"):
        gq.expert_linear(np.ones((1, 256), "f4"), q[0], [[0]])
    with pytest.raises(gq.GGMLQError, match="expert_linear"):
        gq.linear(np.ones((1, 256), "f4"), q)


def test_not_finite(fresh):
    q, ids = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh), np.array([[0, 1], [1, 2], [2, 2]])
    x = fresh.standard_normal((3, 256)).astype("f4")
    x[1, 5] = np.nan
    y = gq.expert_linear(x, q, ids)
    assert np.array_equal(np.isnan(y).all(axis=(1, 2)), [False, True, False])
    assert not np.isnan(y[[0, 2]]).any()


# --- what is kept -------------------------------------------------------------------------------------


def test_panels_stay_with_each_expert(fresh):
    from ggmlq.cpu.panels.multiply import panels

    q, x = experts_of(FORMATS["q4_K"], (4, 20, 256), fresh), np.ones((2, 256), "f4")
    y = gq.expert_linear(x, q, [[1], [3]])
    first = q[1].prepared_copy(panels)
    assert first is not None
    assert q[0].prepared_copy(panels) is None, "an expert that nobody used"
    assert q[1] is q[-3] is list(q)[1]
    assert np.array_equal(x[:1] @ q[1].T, y[0])
    assert q[1].prepared_copy(panels) is first
    q.drop_prepared()
    assert q[1].prepared_copy(panels) is None
    assert np.array_equal(gq.expert_linear(x, q, [[1], [3]]), y)


def test_results_follow_bytes_that_change(fresh):
    q = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh).copy()
    x, ids = fresh.standard_normal((4, 256)).astype("f4"), [[0, 1], [1, 2], [0, 0], [2, 1]]
    before = gq.expert_linear(x, q, ids)
    q.blocks["d"][1] *= -1
    q.blocks["dmin"][1] *= -1
    after = gq.expert_linear(x, q, ids)
    changed = np.array(ids) == 1
    np.testing.assert_allclose(after[changed], -before[changed], rtol=1e-5, atol=1e-4)
    assert np.array_equal(after[~changed], before[~changed])


# --- torch --------------------------------------------------------------------------------------------


def test_tensors(fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, x = experts_of(FORMATS["q4_K"], (3, 20, 256), fresh), fresh.standard_normal((4, 256)).astype("f4")
    ids = fresh.integers(0, 3, (4, 2))
    want = gq.expert_linear(x, q, ids)
    for t_ids in (torch.as_tensor(ids), torch.as_tensor(ids).int(), ids):
        y = gq.expert_linear(torch.as_tensor(x), q, t_ids)
        assert isinstance(y, torch.Tensor)
        assert np.array_equal(y.numpy(), want)
    half = gq.expert_linear(torch.as_tensor(x), q, torch.as_tensor(ids), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    out = torch.empty((4, 2, 20), dtype=torch.bfloat16)
    assert gq.expert_linear(torch.as_tensor(x), q, ids, out=out) is out
    assert torch.equal(out, half)
    with pytest.raises(gq.GGMLQError, match="ids"):
        gq.expert_linear(torch.as_tensor(x), q, torch.as_tensor(ids).float())
    with pytest.raises(gq.GGMLQError, match="last axis"):
        gq.expert_linear(torch.as_tensor(x)[:, :32], q, torch.as_tensor(ids))
