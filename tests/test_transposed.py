"""``y @ q``, the product with weights as they lie: all formats, shapes, dtypes, the bits, and the words."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from block_cases import weights

import ggmlq as gq
from ggmlq.base.threads import at_most
from ggmlq.cpu.linear import transposed
from ggmlq.formats import FORMATS

LIMIT = 1e-10  # f32 products and sums


def off(y, want, least=1e-30):
    """The worst row's error, beside the size of a row of results."""
    size = np.maximum((want**2).sum(-1), (want**2).mean() * want.shape[-1])
    return (((y - want) ** 2).sum(-1) / np.maximum(size, least)).max(initial=0)


def agrees(y, q, **options):
    result = gq.linear(y, q.T, **options)
    want = gq.reference.linear(y, q.T)
    assert result.shape == want.shape == (*y.shape[:-1], q.shape[1])
    terms = y.astype(np.float64) ** 2 @ q.dequantize(np.float64) ** 2  # a short row may all but cancel
    assert off(result, want, np.maximum(terms.sum(-1), 1e-30)) <= LIMIT
    return result


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, fresh):
    k = FORMATS[name].block_size * int(fresh.integers(1, 3)) if FORMATS[name].block_size > 1 else 77
    q = weights(name, 37, k, seed=int(fresh.integers(1 << 30)))
    y = fresh.standard_normal((int(fresh.integers(1, 9)), 37), np.float32)
    result = agrees(y, q)
    assert np.array_equal(result, y @ q)
    assert np.array_equal(result, gq.linear(y, q.mT))
    assert gq.nmse(gq.reference.linear(y, q.T), y.astype(np.float64) @ q.dequantize(np.float64)) <= LIMIT


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", ["q4_0", "q6_K", "f32", "bf16", "iq3_s", "f64"])
@pytest.mark.parametrize("m", [1, 2, 7, 65, 300])
def test_shapes(name, m, fresh):
    size = FORMATS[name].block_size
    n, k = int(fresh.integers(1, 1500)), size * int(fresh.integers(1, 600 // size + 2))
    q = weights(name, n, k, seed=int(fresh.integers(1 << 30)))
    y = fresh.standard_normal((m, n), np.float32)
    result = agrees(y, q)
    some = fresh.permutation(m)[: max(1, m // 3)]
    assert np.array_equal(gq.linear(y[some], q.T), result[some])
    with at_most(1):
        assert np.array_equal(gq.linear(y, q.T), result)


def test_stretches_are_added_in_one_order(monkeypatch, fresh):
    """On many threads stretches of rows are work units; on one thread they follow each other."""
    q = weights("q8_0", 2600, 96, seed=int(fresh.integers(1 << 30)))
    y = fresh.standard_normal((3, 2600), np.float32)
    monkeypatch.setattr(transposed, "num_threads", lambda: 1)
    want = agrees(y, q)
    monkeypatch.setattr(transposed, "num_threads", lambda: 64)
    assert np.array_equal(gq.linear(y, q.T), want)
    monkeypatch.setattr(transposed, "MOST_PARTS", 0)
    assert np.array_equal(gq.linear(y, q.T), want)


def test_forms_of_y(fresh):
    q = weights("q4_K", 12, 256, seed=int(fresh.integers(1 << 30)))
    y = fresh.standard_normal((6, 12), np.float32)
    want = agrees(y, q)
    for same in (
        np.asfortranarray(y), y[::-1].copy()[::-1], y.astype(">f4"), y.astype(np.float64), y.tolist(),
    ):  # fmt: skip
        assert np.array_equal(same @ q, want)
    assert np.array_equal(y.reshape(2, 3, 12) @ q, want.reshape(2, 3, 256))
    assert np.array_equal(y[0] @ q, want[0])
    for other in (np.matmul(y, q), np.dot(y, q), np.matmul(y, q, out=np.empty_like(want)), (q.T @ y.T).T):
        assert np.array_equal(other, want)
    assert np.array_equal(q.T @ y[0], want[0])
    assert q.T.T is q
    part = q[3:9]
    assert np.array_equal(y[:, 3:9] @ part, gq.linear(y[:, 3:9].copy(), part.copy().T))
    assert np.array_equal(y @ q[::-1], y @ q[::-1].copy())


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtypes_bias_and_residual(kind, fresh):
    q = weights("q5_0", 50, 64, seed=int(fresh.integers(1 << 30)))
    y = fresh.standard_normal((5, 50), np.float32).astype(kind)
    sums = gq.linear(y.astype(np.float32), q.T)
    assert np.array_equal(gq.linear(y, q.T), sums)
    assert np.array_equal(gq.linear(y, q.T, dtype=kind), sums.astype(kind))
    bias, residual = fresh.standard_normal(64, np.float32), fresh.standard_normal((5, 64), np.float32)
    want = (sums + bias + residual).astype(kind)
    assert np.array_equal(gq.linear(y, q.T, bias=bias, residual=residual, dtype=kind), want)
    out = np.full((5, 128), 7, kind)
    assert gq.linear(y, q.T, bias=bias, residual=residual, out=out[:, ::2]).base is out
    assert np.array_equal(out[:, ::2], want)
    assert (out[:, 1::2] == 7).all()


def test_out_may_overlap_what_is_read(fresh):
    w, y = fresh.standard_normal((64, 64), np.float32), fresh.standard_normal((64, 64), np.float32)
    q = gq.QuantArray.from_bytes(w, "f32", (64, 64))
    want = y @ q
    for out in (y.copy(), w):
        rows = out if out is not w else y
        assert np.array_equal(gq.linear(rows, q.T, out=out), want)


@pytest.mark.parametrize("shape", [(0, 5, 64), (3, 0, 64), (3, 5, 0)])
def test_nothing(shape):
    m, n, k = shape
    result = np.ones((m, n), np.float32) @ gq.QuantArray.from_bytes(bytes(2 * n * k), "f16", (n, k))
    assert result.shape == (m, k)
    assert not result.any()


def test_values_that_are_not_finite():
    w = np.ones((3, 32), np.float32)
    w[1, 5] = np.inf
    q = gq.QuantArray.from_bytes(w, "f32", (3, 32))
    y = np.array([[1, 1, 1], [1, 0, 1], [np.nan, 0, 0]], np.float32)
    result = y @ q
    assert np.isinf(result[0, 5])
    assert np.isnan(result[1, 5])
    assert np.isnan(result[2]).all()
    assert np.isfinite(np.delete(result[:2], 5, axis=1)).all()


@pytest.mark.parametrize(("code", "tile"), [("e4m3", (1, 128)), ("e4m3", (128, 128)), ("int8", (1, None))])
def test_codes_with_scales(code, tile, fresh, monkeypatch):
    monkeypatch.setattr(transposed, "SLAB", 40 * 4 * 256)
    w = gq.quantize_scaled(fresh.standard_normal((300, 256), np.float32), code, tile)
    y = fresh.standard_normal((4, 300), np.float32)
    result = y @ w
    assert off(result, y.astype(np.float64) @ w.dequantize()) <= LIMIT
    assert np.array_equal(gq.scaled_linear(y, w.T), result)
    half = gq.scaled_linear(y, w.T, dtype=np.float16, residual=result)
    assert np.array_equal(half, (2 * result).astype(np.float16))
    for call in (lambda: gq.quantize_scaled(y, code, (1, None)) @ w, lambda: gq.scaled_linear(w, w.T)):
        with pytest.raises(gq.GGMLQError, match=r"dequantize\(\)|write \.T behind it"):
            call()
    with pytest.raises(gq.GGMLQError, match="leave these out"):
        gq.scaled_linear(y, w.T, requantize=("int8", 1.0))


Q = gq.quantize(np.ones((4, 64), np.float32), "q8_0")
Y = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: np.ones((2, 64), np.float32) @ Q, r"y has shape \(2, 64\).*write x @ q\.T"),
        (lambda: gq.linear(np.ones((2, 9), np.float32), Q.T), r"with N 4; pass y as \[\.\.\., 4\]"),
        (lambda: gq.linear(np.float32(1), Q.T), r"y has shape \(\)"),
        (lambda: Y.astype(int) @ Q, "int64; float16"),
        (lambda: Y @ gq.stack([Q, Q]), r"3-D.*q\[e\]"),
        (lambda: Y @ Q[0], r"1-D; weights are \[N, K\]"),
        (lambda: gq.linear(Y, Q.T, kernel="cpu:panels"), "the kernel 'cpu:transposed'"),
        (lambda: gq.linear(Y, Q.T, arithmetic="q8"), "in the arithmetic 'f32'"),
        (
            lambda: gq.linear(Y, Q.T, bias=np.ones(4, np.float32)),
            r"one value a column of q; pass shape \(64,\)",
        ),
        (lambda: gq.linear(Y, Q.T, residual=np.ones(4)), r"residual has shape \(4,\), the result \(3, 64\)"),
        (lambda: gq.linear(Y, Q.T, out=np.ones((3, 4), np.float32)), r"out has shape \(3, 4\)"),
        (lambda: Y @ gq.parallel.shard(Q, ["cpu", "cpu"]), "weights on several devices"),
        (lambda: Q.T @ Y, r"q\.T @ x .*x has shape \(3, 4\); q\.T is \[K, N\].*write x @ q, which"),
        (lambda: Y.__imatmul__(Q), r"\[\.\.\., K\], not the shape of x; write x = x @ q$"),
        (lambda: gq.reference.linear(Y, Q.T, "q8"), '"exact" or "f32"'),
        (lambda: gq.reference.linear(Y[:, :3], Q.T), r"y is \[\.\.\., N\]"),
    ],
)
def test_words(call, words):
    with pytest.raises(gq.GGMLQError, match=words):
        call()


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_tensors(kind, fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kind = getattr(torch, kind)
    q = weights("q6_K", 40, 256, seed=int(fresh.integers(1 << 30)))
    y = torch.from_numpy(fresh.standard_normal((2, 3, 40), np.float32)).to(kind)
    want = torch.from_numpy(gq.linear(y.float().numpy(), q.T))
    assert torch.equal(y @ q, want)
    assert torch.equal(gq.linear(y, q.T, dtype=kind), want.to(kind))
    bias, residual = torch.randn(256), torch.randn(3, 256).to(kind)
    ended = (want + bias + residual).to(kind)
    out = torch.empty(2, 3, 256, dtype=kind)
    assert gq.linear(y, q.T, bias=bias, residual=residual, out=out) is out
    assert torch.equal(out, ended)
    with pytest.raises(gq.GGMLQError, match="residual has shape"):
        gq.linear(y, q.T, residual=residual[:, :5])
    with pytest.raises(gq.GGMLQError, match=r"write x @ q\.T"):
        torch.ones(2, 256) @ q
