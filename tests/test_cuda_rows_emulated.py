"""Rows put into arrays and taken from them on an emulated card: the host's bytes and values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.array import QuantArray
from ggmlq.cuda.kernels.quantize import rows

N, K = 9, 64
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ENCODED = (*rows.ENCODED, *rows.SCALARS)


def on_card(q):
    return QuantArray(q.format, q.shape, on_device(q.raw)).as_writable()


@pytest.fixture
def card(monkeypatch):
    return put_emulated(monkeypatch)


def put_by(q, ids, x):
    """The bytes after a put, row after row."""
    want, encoded = q.raw.copy(), gq.quantize(x, q.format).raw
    for i, row in zip(ids, encoded, strict=True):
        if 0 <= i < len(q):
            want[i] = row
    return want


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODED)
def test_put(name, card, fresh):
    """Rows of a kind of floats that is drawn; ids that come again, and of no row."""
    kind = str(fresh.choice(list(FLOATS)))
    q = gq.quantize(fresh.standard_normal((N, K), np.float32), name)
    ids, x = fresh.integers(-1, N + 1, 11), fresh.standard_normal((11, K), np.float32).astype(FLOATS[kind])
    x[::3] = np.sign(x[::3])  # blocks whose largest magnitude has both signs
    d = on_card(q)
    gq.put(d, on_device(ids), on_device(x))
    assert np.array_equal(np.asarray(d.raw), put_by(q, ids, x)), kind


@pytest.mark.parametrize("name", ["q8_0", "f16"])
def test_put_of_ids_that_differ(name, card, fresh):
    """The kernels that look for no other row of an id."""
    q, ids = gq.quantize(fresh.standard_normal((N, K), np.float32), name), fresh.permutation(N)[:5]
    x, d = fresh.standard_normal((5, K), np.float32), on_card(q)
    card.memory.add(d.raw)
    rows.put("put", d, on_device(ids), on_device(x), False, unique=True)
    assert np.array_equal(np.asarray(d.raw), put_by(q, ids, x))


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q8_0", "q4_K", "q6_K", *rows.SCALARS])
def test_take(name, card, fresh):
    kind = str(fresh.choice(list(FLOATS)))
    k = K if name not in ("q4_K", "q6_K") else 256
    imatrix = np.ones(k, np.float32) if gq.formats[name].block_size == 256 else None
    q = gq.quantize(fresh.standard_normal((N, k), np.float32), name, imatrix)
    ids = fresh.integers(-1, N + 1, (3, 2))
    got = np.asarray(gq.take(on_card(q), on_device(ids), FLOATS[kind]))
    want = gq.take(q, ids, FLOATS[kind], check=False)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want, equal_nan=True), kind


def test_values_that_do_not_fit(card, fresh):
    d, x = on_card(gq.empty((N, K), "q8_0")), np.ones((2, K), np.float32)
    x[1, 40] = np.inf
    with pytest.raises(gq.errors.NonFiniteError, match="cannot hold"):
        gq.put(d, on_device([3, 1]), on_device(x), check=True)
    with pytest.raises(gq.errors.BlockIndexError, match=r"ids\[1\] is 9"):
        gq.put(d, on_device([3, 9]), on_device(np.ones((2, K))), check=True)


def test_rows_of_another_width(card):
    """The launch itself compares, whoever calls it: the kernels take the columns from x."""
    d, x = on_card(gq.empty((N, K), "q8_0")), on_device(np.ones((2, 2 * K), np.float32))
    with pytest.raises(gq.errors.ShapeError, match="64 columns for each id"):
        rows.put("put", d, on_device(np.array([3, 1])), x, False, unique=True)
    with pytest.raises(gq.errors.ShapeError, match="x has a row of q for each id"):
        gq.put(d, on_device(np.array([3, 1])), x)
    assert not np.asarray(d.raw).any()


def test_what_was_prepared_is_dropped_with_that_of_views(card):
    d = on_card(gq.empty((N, K), "q8_0"))
    views = d, d[2:5], d.reshape(3, 3, K)
    assert all(view.writable for view in views)
    assert not QuantArray(d.format, d.shape, on_device(d.raw)).writable
    for view in views:
        view.prepared(len)
    gq.put(views[1], on_device([0]), on_device(np.ones((1, K), np.float32)))
    assert not any(view.has_prepared for view in views)
    assert np.asarray(d.raw)[2].any()
    d[-1] = on_device(np.ones(K, np.float32))
    assert np.asarray(d.raw)[N - 1].any()
