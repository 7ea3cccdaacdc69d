"""Rows put into arrays and taken from them. Bytes are those of quantize, no product is stale."""

from __future__ import annotations

import pickle
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

decoding = import_module("ggmlq.ops.dequantize")  # ggmlq.ops has the function of that name

N, K = 23, 512
ABLE = [f.name for f in gq.formats.values() if f.can_quantize and not f.needs_imatrix and f.dtype.kind != "i"]


def values(fresh, *shape):
    return fresh.standard_normal(shape, np.float32)


@pytest.mark.parametrize("name", ABLE)
def test_bytes_and_values_of_every_type(name, fresh):
    """Repeated ids, ids of no row, and all others: rows as quantize writes them and dequantize reads them."""
    q, ids = gq.empty((N, K), name), fresh.integers(-2, N + 2, 17)
    assert not q.dequantize().any()
    x = values(fresh, len(ids), K)
    want, rows = q.raw.copy(), gq.quantize(x, name).raw
    for i, row in zip(ids, rows, strict=True):  # in order: the last wins
        if 0 <= i < N:
            want[i] = row
    gq.put(q, ids, x, check=False)
    assert np.array_equal(q.raw, want)
    got = gq.take(q, ids, check=False)
    there = (ids >= 0) & (ids < N)
    assert np.array_equal(got[there], q[ids[there]].dequantize())
    assert np.isnan(got[~there]).all()
    assert got.shape == (17, K)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64, np.float32])
def test_kinds_of_floats(kind, fresh):
    """In and out: what quantize takes and dequantize gives, in one dtype or in an out of any strides."""
    q, x = gq.empty((N, K), "q5_1"), values(fresh, 4, K).astype(kind)
    gq.put(q, [9, 3, 0, 22], x)
    assert np.array_equal(q[[9, 3, 0, 22]].raw, gq.quantize(x, "q5_1").raw)
    want = q[[3, 3, 1]].dequantize(kind)
    out = np.empty((6, K), kind)
    assert gq.take(q, [3, 3, 1], out=out[::2]) is not None
    for got in (gq.take(q, np.array([3, 3, 1], np.uint8), kind), out[::2]):
        assert got.dtype == kind
        assert np.array_equal(got, want)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["q4_K", "bf16", "iq4_nl"])
def test_compiled_decoders_and_parts(name, compiled, fresh, monkeypatch):
    """Rows in parts by threads, decoded by NumPy or by compiled code, some of them missing."""
    monkeypatch.setattr(decoding, "PATIENCE", 0 if compiled else 1 << 60)
    monkeypatch.setattr(decoding, "SHARED", 2 * K)
    monkeypatch.setattr(decoding, "SLAB", 3 * K)
    q, ids = gq.quantize(values(fresh, N, K), name), fresh.integers(0, N, 50)
    assert np.array_equal(gq.take(q, ids), q.dequantize()[ids])
    ids[[7, 48]] = N, -1
    got = gq.take(q, ids, np.float16, check=False)
    assert np.isnan(got[[7, 48]]).all()
    assert np.array_equal(np.delete(got, [7, 48], 0), q[np.delete(ids, [7, 48])].dequantize(np.float16))


def test_rows_of_more_axes(fresh):
    q, x = gq.empty((5, 3, 64), "q8_0"), values(fresh, 2, 2, 3, 64)
    gq.put(q, [[4, 1], [0, 2]], x)
    assert np.array_equal(gq.take(q, [[4, 1], [0, 2]]), gq.quantize(x, "q8_0").dequantize())
    part = q[:, 1:, 32:]  # a view of rows that lie apart
    gq.put(part, [3], values(fresh, 1, 2, 32))
    assert q[3, 1:, 32:].dequantize().any()
    assert not q[3, 0].dequantize().any()


def test_rows_by_an_index(fresh):
    """As NumPy's arrays of floats take them; what picks no whole rows is an error, and nothing is written."""
    x = values(fresh, 6, 64)
    q, floats = gq.empty((6, 64), "f32"), np.zeros((6, 64), np.float32)
    mask = np.arange(6) % 3 == 1
    for index in (
        2,
        -1,
        np.int64(0),
        slice(1, 4),
        slice(None, None, -2),
        [5, 0],
        np.array([[1], [-2]]),
        mask,
        [],
    ):
        rows = x[np.arange(6)[::-1][index]]
        q[index] = floats[index] = rows
        assert np.array_equal(q.dequantize(), floats), index
    view = q[2:4]
    view[1] = x[0]
    assert np.array_equal(q[3].dequantize(), x[0])
    before = q.raw.copy()
    for index, rows, error, words in (
        (6, x[0], errors.BlockIndexError, "q has 6 rows"),
        ((0, slice(0, 32)), x[0, :32], errors.BlockIndexError, r"write gq\.put"),
        (None, x, errors.BlockIndexError, r"write gq\.put"),
        ([1, [2]], x, errors.BlockIndexError, r"write gq\.put"),
        ([1, 2], x[0], errors.ShapeError, r"\(2, 64\); reshape x"),
        (0, "x", errors.DTypeError, "x is <U1"),
    ):
        with pytest.raises(error, match=words):
            q[index] = rows
    with pytest.raises(errors.ShapeError, match="it needs rows"):
        q[0][0] = 1.0
    assert np.array_equal(q.raw, before)


def test_products_see_new_rows(fresh):
    """Prepared copies and recorded launches of an array and of its views are not used after a put."""
    q = gq.quantize(values(fresh, 64, 256), "q4_0").copy()
    views = q, q[16:48], q.reshape(4, 16, 256)[1]
    x = values(fresh, 2, 256)
    for turn in range(4):
        for view in views:
            for _ in range(3):
                want = gq.linear(x, gq.QuantArray.from_bytes(view.raw.tobytes(), view.format, view.shape))
                assert np.array_equal(x @ view.T, want)
        gq.put(views[turn % 3], [turn, 5], values(fresh, 2, 256))


def test_memory_that_overlaps(fresh):
    q = gq.empty((4, 64), "f32")
    gq.put(q, range(4), values(fresh, 4, 64))
    own = q.raw.view(np.float32)
    want = own[::-1].copy()
    gq.put(q, range(4), own[::-1])
    assert np.array_equal(own, want)
    gq.take(q, [3, 2, 1, 0], out=own)
    assert np.array_equal(own, want[::-1])


def test_nothing_to_do():
    q = gq.empty((4, 64), "q8_0")
    gq.put(q, [], np.empty((0, 64)))
    assert gq.take(q, []).shape == (0, 64)
    assert gq.empty((0, 64), "q8_0").shape == (0, 64)
    got = gq.take(gq.empty((0, 64), "q8_0"), [0, 1], check=False)
    assert np.isnan(got).all()
    gq.put(gq.empty((0, 64), "q8_0"), [0], np.ones((1, 64)), check=False)


def test_which_arrays_may_be_written_to(tmp_path):
    q = gq.quantize(np.ones((4, 64)), "q8_0")
    gq.save(tmp_path / "a.gguf", {"a": q})
    for big in ("little", "big"):
        gq.save(tmp_path / "a.gguf", {"a": q}, byteorder=big)
        read = gq.open(tmp_path / "a.gguf")["a"]
        assert not read.writable
        assert read.copy().writable
    for closed in (q, gq.QuantArray.from_bytes(bytearray(q.nbytes), "q8_0", (4, 64)), read):
        with pytest.raises(errors.DTypeError, match="read-only"):
            gq.put(closed, [0], np.ones((1, 64)))
    assert q.copy().writable
    assert pickle.loads(pickle.dumps(q.copy())).writable


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda q, x: gq.put(q, [0, 4], x), errors.BlockIndexError, r"ids\[1\] is 4; q has 4 rows"),
        (lambda q, x: gq.put(q, [-1, 0], x), errors.BlockIndexError, r"ids\[0\] is -1"),
        (lambda q, x: gq.take(q, [[0, 9]]), errors.BlockIndexError, r"ids\[0, 1\] is 9"),
        (lambda q, x: gq.put(q, [0], x), errors.ShapeError, r"x has shape \(2, 64\), ids \(1,\)"),
        (lambda q, x: gq.put(q, [0.0, 1.0], x), errors.DTypeError, "ids are float64"),
        (lambda q, x: gq.put(q, [True, False, True, False], x), errors.DTypeError, "flatnonzero"),
        (lambda q, x: gq.put(q, [0, 1], x * np.nan), errors.NonFiniteError, r"x\[0, 0\] is nan"),
        (lambda q, x: gq.put(x, [0, 1], x), errors.DTypeError, "q is a ndarray"),
        (lambda q, x: gq.take(q[0], [0]), errors.ShapeError, "1-D"),
        (lambda q, x: gq.put(gq.empty((1, 256), "iq2_xs"), [0], x[:1]), errors.ImportanceError, "imatrix"),
        (lambda q, x: gq.take(q, [0], out=np.empty((1, 32))), errors.ShapeError, "out has shape"),
        (lambda q, x: gq.empty((4, 65), "q8_0"), errors.ShapeError, "pad the last axis to 96"),
    ],
)  # fmt: skip
def test_errors_leave_the_array_as_it_was(call, error, words):
    q = gq.empty((4, 64), "q8_0")
    with pytest.raises(error, match=words):
        call(q, np.ones((2, 64), np.float32))
    assert not q.raw.any()


def test_a_value_that_its_type_cannot_hold():
    with pytest.warns(RuntimeWarning, match="cannot hold"):
        gq.put(gq.empty((4, 64), "f16"), [1], np.full((1, 64), 1e6))
