"""Small parts of a layer on an emulated card: norms, RoPE, gates, beside those of the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.kernels import layers, router
from ggmlq.cuda.kernels.epilogue import gates
from ggmlq.cuda.kernels.quantize import rope_append
from ggmlq.errors import ShapeError, UnsupportedError
from ggmlq.model.arithmetic.kernels import apply_rope, rope_angles
from ggmlq.model.arithmetic.oracles import Exact
from ggmlq.model.config import Rope
from ggmlq.ops.cache import hadamard

ULP = 2.0**-24  # half a unit in the last place of float32
HOST = Exact()


@pytest.fixture
def card(monkeypatch):
    return put_emulated(monkeypatch)


@pytest.mark.parametrize("columns", [4, 64, 100, 600, 2052, 8196])
def test_norm(card, fresh, columns):
    """A thread sums up to 16 squares one after the other, and 37 sums are added: all have one sign."""
    x = fresh.standard_normal((2, 1, columns)).astype(np.float32) * np.float32(10.0 ** fresh.uniform(-3, 3))
    weights = fresh.standard_normal(columns).astype(np.float32)
    y = np.asarray(layers.normed(on_device(x), on_device(weights), 1e-5))
    expected = HOST.norm(x.astype(np.float64), 1e-5) * weights
    assert y.shape == x.shape
    assert np.allclose(y, expected, rtol=64 * ULP, atol=0)


@pytest.mark.parametrize("columns", [6, 16388])
def test_norms_that_are_refused(card, columns):
    x = on_device(np.ones((1, columns), np.float32))
    with pytest.raises(UnsupportedError, match="multiple of 4"):
        layers.normed(x, x[0], 1e-5)


@pytest.mark.parametrize("halves", [False, True])
def test_rope(card, fresh, halves):
    dims, positions = 32, np.sort(fresh.choice(600, 3, replace=False))
    how = Rope(dims, halves, 10000.0)
    x = fresh.standard_normal((3, 2, 48)).astype(np.float32)
    angles = [part.astype(np.float32) for part in rope_angles(how, positions)]
    y = np.asarray(layers.apply_rope(on_device(x), halves, *map(on_device, angles)))
    expected = apply_rope(x.astype(np.float64), how, *angles)
    assert np.abs(y - expected).max() <= 4 * ULP * np.abs(x).max()  # two products and a sum
    assert np.array_equal(y[..., dims:], x[..., dims:])


@pytest.mark.parametrize("name", layers.GATES)
def test_gates(card, fresh, name):
    """An exponent of up to 128 is rounded, and its exponential is off by as many units."""
    gate, up = (3 * fresh.standard_normal((3, 150)).astype(np.float32) for _ in range(2))
    gate[0, :4] = 0, 90, -90, 1000
    y = np.asarray(gates.gate_product(name, on_device(gate)[:, ::-1], on_device(up)[:, ::-1]))
    expected = HOST.gated(name, gate.astype(np.float64), up.astype(np.float64))
    assert np.allclose(y[:, ::-1], expected, rtol=256 * ULP, atol=256 * ULP)


@pytest.mark.parametrize("kind", ["f", "e", "H"])
def test_a_gate_behind_two_products(card, fresh, kind):
    """The number of float32, rounded once, in place of one of the products too; nothing is written beyond."""
    name = str(fresh.choice(layers.GATES))
    gate, up = (on_device(fresh.standard_normal((5, 61), np.float32)) for _ in range(2))
    want = np.asarray(gates.gate_product(name, gate, up))
    y = on_device(np.full((7, 61), 9, kind))
    y[1:6] = gate if kind == "f" else 0
    card.memory.add(y)
    gates.gated(name, y[1:6] if kind == "f" else gate, up, y[1:6])
    assert (np.asarray(y)[[0, -1]] == 9).all()
    got = np.asarray(y[1:6])
    if kind == "H":
        assert np.array_equal(got.view(ml_dtypes.bfloat16), want.astype(ml_dtypes.bfloat16))
    else:
        assert np.array_equal(got, want.astype(kind))


@pytest.mark.parametrize("columns", [40, 600])
def test_a_sum_and_its_norm(card, fresh, columns):
    """The sum is that of float32, and the norm that of the sum."""
    x, y = fresh.standard_normal((2, 3, columns)).astype(np.float32)
    weights = fresh.standard_normal(columns).astype(np.float32)
    sums, normed = layers.normed_sum(on_device(x), on_device(y), on_device(weights), 1e-5)
    assert np.array_equal(sums, x + y)
    expected = HOST.norm((x + y).astype(np.float64), 1e-5) * weights
    assert np.allclose(normed, expected, rtol=64 * ULP, atol=0)


def test_rows_in_the_order_of_queries(card, fresh):
    """And back; what fills up a sequence may be any row, and rows may be columns of longer ones."""
    counts, each, heads, width = fresh.integers(1, 8, 3), 8, 3, int(fresh.choice([4, 64]))
    wide = on_device(fresh.standard_normal((max(counts.sum() + 2, 6), heads * width + 8)).astype(np.float32))
    card.memory.add(wide)
    x = wide[:, : heads * width].reshape(-1, heads, width)
    places, back, row = np.zeros((3, each), np.int64), np.zeros(len(x), np.int64), 0
    for i, count in enumerate(counts):
        places[i, each - count :] = np.arange(row, row + count)
        back[row : row + count] = (i + 1) * each - count + np.arange(count)
        row += count
    y = layers.by_queries(x, on_device(places), 3, each)
    assert np.array_equal(y, np.asarray(x)[places].transpose(0, 2, 1, 3))
    assert np.array_equal(np.asarray(layers.by_rows(y, on_device(back)))[:row], x[:row])
    y = layers.by_queries(x[:6], None, 2, 3)
    assert np.array_equal(y, np.asarray(x[:6]).reshape(2, 3, heads, width).transpose(0, 2, 1, 3))
    assert np.array_equal(layers.by_rows(y, None), x[:6])
    with pytest.raises(UnsupportedError, match="columns"):
        layers.by_queries(on_device(x[..., :3]), on_device(places), 3, each)


@pytest.mark.parametrize("name", layers.GATES)
def test_gates_of_pairs(card, fresh, name):
    both = 3 * fresh.standard_normal((2, 2, 140)).astype(np.float32)
    apart = gates.gate_product(name, on_device(both[..., :70]), on_device(both[..., 70:]))
    assert np.array_equal(layers.gated_pair(name, on_device(both)), apart)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("name", ["f16", "f32", "bf16"])
def test_rope_and_append(card, fresh, name, halves):
    """Columns of one product, of two sequences; rows of the cache that no id names stay."""
    dims, batch, each, count, kv_heads, columns, columns_v = 32, 2, 3, 4, 2, 40, 24
    tokens, wide = batch * each, count * columns + kv_heads * (columns + columns_v)
    product = on_device(fresh.standard_normal((tokens, wide)).astype(np.float32))
    q, k, v = np.split(product, [count * columns, (count + kv_heads) * columns], axis=1)
    parts = [x.reshape(tokens, -1, size) for x, size in ((q, columns), (k, columns), (v, columns_v))]
    how = Rope(dims, halves, 10000.0)
    angles = [part.astype(np.float32) for part in rope_angles(how, np.sort(fresh.choice(600, tokens, False)))]
    ids = fresh.permutation(30)[: tokens * kv_heads].reshape(tokens, kv_heads)
    rows = [fresh.standard_normal((30, size)).astype(np.float32) for size in (columns, columns_v)]
    cache = [gq.quantize(x, name) for x in rows]
    on_card = [gq.QuantArray(one.format, one.shape, on_device(one.raw)) for one in cache]
    for one in on_card:
        card.memory.add(one.raw)
    card.memory.add(product)
    y = rope_append.append(parts, halves, list(map(on_device, angles)), on_device(ids), on_card, batch)
    rope_q, rope_k = (apply_rope(np.asarray(x, np.float64), how, *angles) for x in parts[:2])
    expected = rope_q.reshape(batch, each, count, columns).transpose(0, 2, 1, 3)
    assert np.abs(np.asarray(y) - expected).max() <= 4 * ULP * np.abs(product).max()
    fraction = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 4 * ULP}[name]
    for one, before, new in zip(on_card, cache, (rope_k, np.asarray(parts[2], np.float64)), strict=True):
        after = gq.QuantArray(one.format, one.shape, np.array(one.raw)).dequantize(np.float64)
        written, there = after[ids.reshape(-1)], new.reshape(tokens * kv_heads, -1)
        assert np.abs(written - there).max() <= 1.01 * fraction * np.abs(there).max() + 2.0**-24
        others = np.setdiff1d(np.arange(30), ids)
        assert np.array_equal(after[others], before.dequantize(np.float64)[others])


@pytest.mark.parametrize("wrong", ["k", "v", "ids", "cache", "angles", "all"])
def test_heads_that_do_not_fit_are_refused(card, wrong):
    """Kernels write as many columns as heads have, and read as many pairs as angles have."""
    shapes = {
        "q": (6, 4, 40),
        "k": (6, 2, 40),
        "v": (6, 2, 24),
        "ids": (6, 2),
        "cache": (30, 40),
        "angles": (6, 16),
    }
    more = {"k": (6, 2, 80), "v": (6, 2, 48), "ids": (6, 1), "cache": (30, 32), "angles": (6, 21)}
    shapes |= {wrong: more[wrong]} if wrong != "all" else {"q": (6, 4, 80), "k": (6, 2, 80), "v": (6, 2, 80)}
    q, k, v, ids, keys, angle = (on_device(np.zeros(shape, np.float32)) for shape in shapes.values())
    f32, values = gq.formats["f32"], on_device(np.zeros((30, 24), np.float32))
    cache = [gq.QuantArray(f32, x.shape, x.view(np.uint8)) for x in (keys, values)]
    with pytest.raises(ShapeError, match="as wide as the rows"):
        rope_append.append((q, k, v), False, (angle, angle), ids, cache, 2)
    with pytest.raises(ShapeError, match="as wide as the rows"):
        rope_append.spread((q, k, v), False, (angle, angle), 2)


@pytest.mark.parametrize("columns", [64, 256])
@pytest.mark.parametrize("halves", [False, True])
def test_rope_and_spread(card, fresh, columns, halves):
    """Keys and queries over all their columns, values over 64; sums of 256 numbers, halved step by step."""
    dims, batch, each, count, kv_heads = 32, 2, 1, 2, 1
    tokens = batch * each
    product = on_device(fresh.standard_normal((tokens, (count + 2 * kv_heads) * columns)).astype(np.float32))
    parts = np.split(product, [count * columns, (count + kv_heads) * columns], axis=1)
    q, k, v = (x.reshape(tokens, -1, columns) for x in parts)
    how = Rope(dims, halves, 10000.0)
    angles = [part.astype(np.float32) for part in rope_angles(how, np.sort(fresh.choice(600, tokens, False)))]
    card.memory.add(product)
    results = rope_append.spread((q, k, v), halves, list(map(on_device, angles)), batch)
    plain = [np.asarray(x, np.float64) for x in (q, k, v)]
    plain[:2] = [apply_rope(x, how, *angles) for x in plain[:2]]
    for x, y, size in zip(plain, results, (columns, columns, 64), strict=True):
        expected = hadamard(x.reshape(-1, size)).reshape(x.shape)
        if y is results[0]:
            expected = expected.reshape(batch, each, count, columns).transpose(0, 2, 1, 3)
        assert y.shape == expected.shape
        assert np.abs(np.asarray(y) - expected).max() <= 16 * ULP * columns**0.5 * np.abs(product).max()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("experts", "used"), [(6, 2), (40, 4), (128, 8)])
def test_choice_of_experts(card, fresh, experts, used, after):
    """The largest scores, of equal ones the first; an exponential is off by some units in the last place."""
    scores = fresh.integers(-20, 20, (3, experts)).astype(np.float32) / 4
    scores[1] = fresh.standard_normal(experts)
    of_one = bool(fresh.integers(2))
    ids, weights = router.routed(on_device(scores), used, after, of_one, 2.5)
    expected = np.argsort(-scores, axis=-1, kind="stable")[:, :used]
    assert np.array_equal(ids, expected)
    shares = HOST.softmax(scores.astype(np.float64))
    shares = np.take_along_axis(shares, expected, -1)
    if after or of_one:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    assert np.allclose(weights, 2.5 * shares, rtol=256 * ULP, atol=0)


def test_scores_that_are_no_numbers(card):
    """The experts chosen are some that there are."""
    ids, _ = router.routed(on_device(np.full((1, 40), np.nan, np.float32)), 3, False, True, 1.0)
    assert ((np.asarray(ids) >= 0) & (np.asarray(ids) < 40)).all()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_scores_of_experts(card, fresh, rows):
    """Sums of 70 numbers: a lane adds up to three, and five sums are added."""
    x, w = (fresh.standard_normal((count, 70)).astype(np.float32) for count in (rows, 11))
    y = np.asarray(router.scored(on_device(x), on_device(w)))
    sizes = np.abs(x).astype(np.float64) @ np.abs(w).T
    assert (np.abs(y - x.astype(np.float64) @ w.T) <= 16 * ULP * sizes).all()


def test_weighted_sums(card, fresh):
    y, weights = fresh.standard_normal((2, 3, 300)).astype(np.float32), fresh.random((2, 3), np.float32)
    expected = (y.astype(np.float64) * weights[..., None]).sum(axis=1)
    sizes = (np.abs(y) * weights[..., None]).sum(axis=1)
    assert (np.abs(router.mixed(on_device(y), on_device(weights)) - expected) <= 8 * ULP * sizes).all()


def test_the_best_columns(card, fresh):
    """The first of several that are equal, whatever their sign of zero; NaN is the largest."""
    x = np.round(fresh.standard_normal((6, int(fresh.integers(1, 3 * layers.PART)))), 1).astype(np.float32)
    x[1], x[2], x[3] = -0.0, -np.inf, -np.abs(x[3])
    x[1, x.shape[1] // 2 :] = 0
    x[4, fresh.integers(x.shape[1])] = -np.nan
    assert np.array_equal(layers.best(on_device(x)), x.argmax(axis=1))
