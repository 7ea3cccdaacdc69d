"""gated_linear: activations, formats, experts, 16 bits, out; and bias, weights, residual of products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from at_once import at_once
from block_cases import weights

import ggmlq as gq
from ggmlq.ops.gated_linear import ACTIVATIONS

EXACT = 1e-9  # of rungs that multiply in float32, through an activation


def draw(fresh):
    return int(fresh.integers(1 << 30))


def close(y, want, most, size=1e-20):
    """Like nmse, but beside a size at least: a few results may all but cancel."""
    assert y.shape == want.shape
    assert np.square(y - want, dtype=np.float64).sum() <= most * max((want**2).sum(), size)


def typical(x, q, bias=0.0):
    """The mean square of each product, were its terms of random sign."""
    return x.astype(np.float64) ** 2 @ q.dequantize(np.float64).T ** 2 + np.square(bias, dtype=np.float64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_right_everywhere(activation, fresh):
    """An identity of float32 shows the activation itself."""
    g = np.concatenate([np.linspace(-40, 40, 20001), fresh.standard_normal(4000) * 1e-3]).astype(np.float32)
    u = fresh.standard_normal(len(g), np.float32) * 5
    gate, up = (gq.QuantArray.from_bytes(w, "f32", (len(g), 1)) for w in (g, u))
    one = np.ones((1, 1), np.float32)
    y = gq.gated_linear(one, gate, up, activation=activation)
    want = gq.reference.gated_linear(one, gate, up, activation=activation)
    assert np.abs(y - want).max() <= 1e-5 * np.abs(u).max()
    close(y, want, 1e-12)
    for far in (-1e30, 1e30):
        w = np.full((1, 1), far, np.float32)
        gate = gq.QuantArray.from_bytes(w, "f32", (1, 1))
        y = gq.gated_linear(one, gate, gate, activation=activation)
        assert not np.isnan(y).any()


def test_a_normal_distribution_far_out():
    inf = np.array([[np.inf], [-30.0], [30.0]], np.float32)
    gate = gq.QuantArray.from_bytes(inf, "f32", (3, 1))
    up = gq.QuantArray.from_bytes(np.ones((3, 1), np.float32), "f32", (3, 1))
    y = gq.gated_linear(np.ones(1, np.float32), gate, up, activation="gelu")
    assert np.allclose(y, [np.inf, 0, 30], rtol=0, atol=1e-40)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("first", "second"), [("q4_0", "q6_K"), ("f16", "f16"), ("q8_0", "iq4_nl")])
@pytest.mark.parametrize("m", [1, 3, 40])
def test_products_of_two_formats(first, second, activation, m, fresh):
    n, k = int(fresh.integers(1, 100)), 512
    gate, up = weights(first, n, k, draw(fresh)), weights(second, n, k, draw(fresh))
    x = fresh.standard_normal((m, k), np.float32) * np.float32(0.1)
    bias = fresh.standard_normal(n, np.float32), None
    y = gq.gated_linear(x, gate, up, activation=activation, bias=bias, arithmetic="f32")
    want = gq.reference.gated_linear(x, gate, up, "f32", activation=activation, bias=bias)
    close(y, want, EXACT, (typical(x, gate, bias[0]) * typical(x, up)).sum())
    y = gq.gated_linear(x, gate, up, activation=activation)
    g, u = (x @ gate.T).copy(), (x @ up.T).copy()
    with np.errstate(over="ignore"):
        assert np.array_equal(y, ACTIVATIONS[activation](np, g, u))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtypes_and_out(kind, fresh):
    gate, up = weights("q8_0", 48, 64, draw(fresh)), weights("q4_0", 48, 64, draw(fresh))
    x = fresh.standard_normal((2, 3, 64), np.float32).astype(kind)
    want = gq.gated_linear(x, gate, up)
    assert (want.shape, want.dtype) == ((2, 3, 48), np.float32)
    assert np.array_equal(gq.gated_linear(x, gate, up, dtype=kind), want.astype(kind))
    wide = np.full((2, 3, 96), 7, kind)
    assert gq.gated_linear(x, gate, up, out=wide[..., ::2]).base is wide
    assert np.array_equal(wide[..., ::2], want.astype(kind))
    assert (wide[..., 1::2] == 7).all()
    assert np.array_equal(gq.gated_linear(x[0, 0].tolist(), gate, up), gq.gated_linear(x[0, 0], gate, up))
    assert gq.gated_linear(x[:, :0], gate, up).shape == (2, 0, 48)


@pytest.mark.parametrize("overlap", ["x", "gate", "up"])
def test_out_may_overlap_what_is_read(overlap, fresh):
    x, g, u = (fresh.standard_normal((64, 64), np.float32) for _ in range(3))
    gate, up = (gq.QuantArray.from_bytes(w, "f32", (64, 64)) for w in (g, u))
    want = gq.gated_linear(x, gate, up)
    out = {"x": x, "gate": g, "up": u}[overlap]
    assert np.array_equal(gq.gated_linear(x, gate, up, out=out), want)


def test_codes_with_scales(fresh):
    gate, up = (
        gq.quantize_scaled(fresh.standard_normal((20, 256), np.float32), "e4m3", (128, 128)) for _ in "gu"
    )
    x = fresh.standard_normal((4, 256), np.float32) * np.float32(0.1)
    y = gq.gated_linear(x, gate, up, activation="gelu_tanh")
    close(y, gq.reference.gated_linear(x, gate, up, activation="gelu_tanh"), 2e-2)
    coded = gq.quantize_scaled(x, "e4m3", (1, 128))
    assert np.array_equal(gq.gated_linear(coded, gate, up, activation="gelu_tanh"), y)
    blocks = weights("f16", 20, 256, draw(fresh))
    close(gq.gated_linear(x, gate, blocks), gq.reference.gated_linear(x, gate, blocks), 2e-2)


def test_on_several_devices(fresh):
    gate, up = weights("f16", 48, 64, draw(fresh)), weights("f16", 48, 64, draw(fresh))
    x = fresh.standard_normal((3, 64), np.float32)
    shards = [gq.parallel.shard(w, ["cpu", "cpu"]) for w in (gate, up)]
    close(gq.gated_linear(x, *shards), gq.gated_linear(x, gate, up).astype(float), 1e-10)
    residual = fresh.standard_normal((3, 48), np.float32)
    alone = gq.linear(x, shards[0], invariant=True)
    assert np.array_equal(gq.linear(x[1:2], shards[0], invariant=True), alone[1:2])
    y = gq.linear(x, shards[0], residual=residual, bias=residual[0])
    close(y, (x @ gate.T + residual[0] + residual).astype(float), 1e-10)


# --- experts ----------------------------------------------------------------------------------


@pytest.fixture
def mixture(fresh):
    e, t, u, n, k = 5, int(fresh.integers(1, 30)), int(fresh.integers(1, 4)), 48, 64
    q = gq.quantize(fresh.standard_normal((e, n, k), np.float32), "q8_0")
    x = fresh.standard_normal((t, k), np.float32)
    return x, q, fresh.integers(0, e, (t, u)), fresh


@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
def test_gated_experts(mixture, activation):
    x, gate, ids, fresh = mixture
    up = gq.quantize(fresh.standard_normal(gate.shape, np.float32), "q4_0")
    bias = [fresh.standard_normal(gate.shape[:2], np.float32) for _ in "gu"]
    y = gq.gated_linear(x, gate, up, ids=ids, activation=activation, bias=bias)
    assert y.shape == (*ids.shape, 48)
    g, u = (gq.expert_linear(x, w, ids, bias=b) for w, b in zip((gate, up), bias, strict=True))
    assert np.array_equal(y, ACTIVATIONS[activation](np, g, u))
    want = gq.reference.gated_linear(x, gate, up, ids=ids, activation=activation, bias=bias)
    close(y, want, 2e-2)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_bias_weights_and_residual_of_experts(mixture, kind):
    x, q, ids, fresh = mixture
    (t, u), (e, n, _) = ids.shape, q.shape
    bias, share = fresh.standard_normal((e, n), np.float32), fresh.random((t, u), np.float32)
    y = gq.expert_linear(x, q, ids)
    with_bias = y + bias[ids]
    assert np.array_equal(gq.expert_linear(x, q, ids, bias=bias, dtype=kind), with_bias.astype(kind))
    mixed = with_bias[:, 0] * share[:, 0, None]
    for i in range(1, u):
        mixed += with_bias[:, i] * share[:, i, None]
    assert np.array_equal(
        gq.expert_linear(x, q, ids, bias=bias, weights=share, dtype=kind), mixed.astype(kind)
    )
    close(
        gq.expert_linear(x, q, ids, bias=bias, weights=share),
        gq.reference.expert_linear(x, q, ids, bias=bias, weights=share), 1e-3,
    )  # fmt: skip
    stream = fresh.standard_normal((t, n)).astype(kind)
    want = (mixed + stream).astype(kind)
    out = stream.copy()
    assert gq.expert_linear(x, q, ids, bias=bias, weights=share, residual=out, out=out) is out
    assert np.array_equal(out, want)
    assert np.array_equal(
        gq.expert_linear(x, q, ids, residual=stream[:, None], dtype=kind), (y + stream[:, None]).astype(kind)
    )


def test_an_id_that_is_no_expert(mixture):
    x, q, ids, _ = mixture
    ids = ids.copy()
    ids[0, 0] = 99
    y = gq.expert_linear(x, q, ids, check=False, bias=np.ones(q.shape[:2]), weights=np.ones(ids.shape))
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1:]).all()
    with pytest.raises(gq.GGMLQError, match=r"ids\[0, 0\] is 99"):
        gq.expert_linear(x, q, ids, weights=np.ones(ids.shape))


def test_experts_with_scales(mixture):
    x, q, ids, fresh = mixture
    w = gq.quantize_scaled(q.dequantize(), "int8", (1, None))
    share = fresh.random(ids.shape)
    y = gq.expert_linear(x, w, ids, weights=share)
    close(y, gq.reference.expert_linear(x, w, ids, weights=share), 1e-3)


# --- residual ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_residual(kind, fresh):
    q = weights("q5_K", 40, 256, draw(fresh))
    x, bias = fresh.standard_normal((4, 3, 256), np.float32), fresh.standard_normal(40, np.float32)
    sums = gq.linear(x, q)
    for shape in ((4, 3, 40), (3, 40), (40,), (4, 1, 1), ()):
        residual = fresh.standard_normal(shape).astype(kind)
        want = (sums + bias + residual.astype(np.float32 if kind != np.float64 else kind)).astype(np.float32)
        for _ in range(3):  # recorded, then repeated
            y = gq.linear(x, q, bias=bias, residual=residual, dtype=kind)
            assert np.array_equal(y, want.astype(kind))
    out = fresh.standard_normal((4, 3, 40)).astype(kind)
    want = (sums + out.astype(np.float32)).astype(kind)
    assert gq.linear(x, q, residual=out, out=out) is out
    assert np.allclose(out.astype(float), want.astype(float), atol=1e-6)


def test_a_residual_that_lies_in_out_in_another_way(fresh):
    q = weights("q8_0", 4, 32, draw(fresh))
    x = fresh.standard_normal((4, 32), np.float32)
    sums = x @ q.T
    memory = fresh.standard_normal((5, 4), np.float32)
    want = sums + memory[:4]
    assert np.array_equal(gq.linear(x, q, residual=memory[:4], out=memory[1:]), want)
    memory = fresh.standard_normal((4, 4), np.float32)
    want = sums + memory.T
    assert np.array_equal(gq.linear(x, q, residual=memory.T, out=memory), want)
    row = memory[2].copy()
    assert np.array_equal(gq.linear(x, q, residual=memory[2], out=memory), sums + row)


def test_large_residuals_on_threads(fresh):
    q = weights("q4_0", 1024, 32, draw(fresh))
    x, residual = fresh.standard_normal((700, 32), np.float32), fresh.standard_normal((700, 1024), np.float32)
    want = (x @ q.T + residual).astype(np.float16)
    assert np.array_equal(gq.linear(x, q, residual=residual, dtype=np.float16), want)


def test_many_threads(fresh):
    """Recordings are shared: each call has its own arrays, residuals, results and kind."""
    q, up = weights("q4_K", 64, 256, draw(fresh)), weights("q6_K", 64, 256, draw(fresh))
    x = fresh.standard_normal((6, 3, 256), np.float32)
    stream = fresh.standard_normal((6, 3, 64), np.float32)
    back = fresh.standard_normal((6, 3, 64), np.float32)
    usual, alone = gq.linear(x, q), gq.linear(x, q, invariant=True)
    gates, other = gq.gated_linear(x, q, up), back @ q

    def work(i):
        for _ in range(20):
            out = stream[i].copy()
            assert gq.linear(x[i], q, residual=out, out=out) is out
            assert np.allclose(out, usual[i] + stream[i], atol=1e-4)
            y = gq.linear(x[i], q, residual=stream[i], invariant=True, dtype=np.float16)
            assert np.array_equal(y, (alone[i] + stream[i]).astype(np.float16))
            assert np.allclose(gq.gated_linear(x[i], q, up), gates[i], rtol=1e-3, atol=1e-3)
            assert np.array_equal(back[i] @ q, other[i])

    at_once(work, 6)


X, Q = np.ones((3, 32), np.float32), gq.quantize(np.ones((4, 32), np.float32), "q8_0")
E = gq.stack([Q, Q])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gq.gated_linear(X, Q, Q, activation="gelu_erf"), "there are silu, gelu, gelu_tanh"),
        (lambda: gq.gated_linear(X, Q, Q[:2]), r"gate has shape \(4, 32\), up \(2, 32\)"),
        (lambda: gq.gated_linear(X, E, E), r"3-D; it is 2-D here; pass ids"),
        (lambda: gq.gated_linear(X, Q, Q, ids=[[0]] * 3), "2-D; it is 3-D here; leave ids out"),
        (lambda: gq.gated_linear(X, Q, X), "up is a ndarray"),
        (lambda: gq.gated_linear(X, Q, Q, bias=X), "it is a pair"),
        (lambda: gq.gated_linear(X[:, :5], Q, Q), "the last axis of both is K"),
        (lambda: gq.gated_linear(X, Q, Q, out=np.ones((3, 5))), r"out has shape \(3, 5\)"),
        (lambda: gq.expert_linear(X, E, [[0]] * 3, bias=np.ones(4)), r"\[E, N\].*pass shape \(2, 4\)"),
        (lambda: gq.expert_linear(X, E, [[0]] * 3, weights=np.ones(3)), r"\[T, U\].*pass shape \(3, 1\)"),
        (lambda: gq.expert_linear(X, E, [[0]] * 3, weights=[[1]] * 3), "weights is int64"),
        (lambda: gq.expert_linear(X, E, [[0]] * 3, residual=np.ones((3, 4))), r"the result \(3, 1, 4\)"),
        (lambda: gq.expert_linear(X, E, [0, 0, 0], weights=np.ones((3, 1))), "ids have shape"),
        (lambda: gq.expert_linear(X, E, [[0], [1, 0]], weights=np.ones((3, 1))), "ids are no array"),
        (lambda: gq.gated_linear(X, E, E, ids=[[0], [1, 0]]), "ids are no array"),
        (lambda: gq.gated_linear(X, E, E, ids=np.ones((3, 1))), "ids are float64"),
    ],
)
def test_words(call, words):
    with pytest.raises(gq.GGMLQError, match=words):
        call()


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_tensors(kind, mixture):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows, q, ids, _ = mixture
    kind = getattr(torch, kind)
    x = torch.from_numpy(rows).to(kind)
    host = x.float().numpy()
    want = torch.from_numpy(gq.gated_linear(host, q[0], q[1]))
    assert torch.equal(gq.gated_linear(x, q[0], q[1], dtype=kind), want.to(kind))
    residual, bias = torch.randn(len(x), 48).to(kind), torch.randn(48)
    for _ in range(3):
        want = (torch.from_numpy(gq.linear(host, q[0], bias=bias.numpy())) + residual).to(kind)
        assert torch.equal(gq.linear(x, q[0], bias=bias, residual=residual, dtype=kind), want)
    share, biases = torch.rand(ids.shape), torch.randn(q.shape[:2])
    ids_tensor = torch.from_numpy(ids)
    want = torch.from_numpy(
        gq.expert_linear(
            host, q, ids, bias=biases.numpy(), weights=share.numpy(), residual=residual.float().numpy()
        )
    )
    y = gq.expert_linear(x, q, ids_tensor, bias=biases, weights=share, residual=residual)
    assert torch.allclose(y, want, atol=1e-5)
    want = torch.from_numpy(gq.gated_linear(host, q, q, ids=ids, bias=(None, biases.numpy())))
    assert torch.equal(gq.gated_linear(x, q, q, ids=ids_tensor, bias=(None, biases)), want)
    out = torch.empty(len(x), 48, dtype=kind)
    assert gq.gated_linear(x, q[0], q[1], out=out) is out
