"""Heads of attention on several devices, here all of them the host: results are those of one device."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

THREE = ["cpu"] * 3
OPTIONS = (
    {"causal": True, "alibi": 8.0},
    {"window": 3, "softcap": 5.0, "invariant": True},
    {"causal": True, "dtype": np.float16, "scale": 0.3, "lengths": np.array([9, 4])},
)


def rows(fresh, *shape):
    return fresh.standard_normal(shape, np.float32)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_over_parts(options, fresh):
    """Bits of one device: heads do not know each other, and options of heads are cut with them."""
    q, k, v = rows(fresh, 2, 10, 3, 64), *(gq.quantize(rows(fresh, 2, 5, 9, n), "q8_0") for n in (64, 32))
    sharded = [gq.parallel.shard(x, THREE, "heads") for x in (k, v)]
    assert [part.shape[1] for part in sharded[0].parts] == [1, 2, 2]
    assert sharded[0].shape == k.shape
    assert gq.equal(sharded[0].to("cpu"), k)
    for more in (
        {"sinks": rows(fresh, 10)}, {"mask": rows(fresh, 10, 1, 9)}, {"mask": rows(fresh, 1, 3, 9) > 0},
    ):  # fmt: skip
        want = gq.attention(q, k, v, **options, **more)
        y = gq.attention(q, *sharded, **options, **more)
        assert y.dtype == want.dtype
        assert np.array_equal(y, want), more
    out = np.empty((2, 10, 3, 32))
    assert gq.attention(q, *sharded, out=out) is out
    assert np.array_equal(out, gq.attention(q, k, v))


@pytest.mark.parametrize("rotate", [False, True])
def test_a_cache_in_parts(rotate, fresh):
    facts = {"k": "q8_0", "v": "q4_0", "batch": 2, "rotate": rotate}
    whole, parts = gq.KVCache(3, 64, 12, **facts), gq.parallel.KVCache(3, 64, 12, ["cpu"] * 2, **facts)
    for count, lengths in ((4, None), (3, [1, 3])):
        k, v = rows(fresh, 2, 3, count, 64), rows(fresh, 2, 3, count, 64)
        for c in (whole, parts):
            c.append(k, v, lengths=lengths)
    q = rows(fresh, 2, 6, 2, 64)
    assert np.array_equal(parts.attend(q, causal=True), whole.attend(q, causal=True))
    assert (parts.lengths.tolist(), len(parts), parts.nbytes) == ([5, 7], 7, whole.nbytes)
    bad = rows(fresh, 2, 3, 1, 64)
    bad[0, 2] = np.inf
    with pytest.raises(errors.NonFiniteError):
        parts.append(bad, bad)
    assert parts.lengths.tolist() == [5, 7]
    for c in (whole, parts):
        c.truncate([2, 6])
    assert np.array_equal(parts.attend(q), whole.attend(q))
    assert "6 of 12 positions, heads 1 + 2 of 64, batch 2, on cpu, cpu" in repr(parts)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_layer_whose_heads_stay_on_their_devices(batch, fresh):
    """From the rows of three matrices to one sum, as on one device."""
    heads, kv_heads, width, tokens = 6, 3, 32, 4
    lead = (tokens,) if batch == 1 else (batch, tokens)
    x = rows(fresh, *lead, 64)
    wq, wk, wv = (gq.quantize(rows(fresh, n * width, 64), "q8_0") for n in (heads, kv_heads, kv_heads))
    wo = gq.quantize(rows(fresh, 64, heads * width), "q8_0")
    single, c = (
        gq.KVCache(kv_heads, width, 9, batch=batch),
        gq.parallel.KVCache(kv_heads, width, 9, ["cpu"] * 2, batch=batch),
    )

    def by_head(y, count):
        return y.reshape(batch, tokens, count, width).swapaxes(1, 2)

    single.append(by_head(x @ wk.T, kv_heads), by_head(x @ wv.T, kv_heads))
    y = single.attend(by_head(x @ wq.T, heads), causal=True).swapaxes(1, 2).reshape(*lead, -1)
    q, k, v = (gq.parallel.shard(w, c.devices, cuts=c.cuts(len(w))) for w in (wq, wk, wv))
    o = gq.parallel.shard(wo, c.devices, axis=1, cuts=c.cuts(wo.shape[1]))
    every = gq.parallel.replicate(x, c.devices)
    c.append(*(gq.parallel.linear(every, w) for w in (k, v)))
    mixed = c.attend(gq.parallel.linear(every, q), causal=True)
    assert np.allclose(mixed.gather(), y, atol=1e-5)
    assert np.allclose(gq.parallel.linear(mixed, o).gather(), y @ wo.T, atol=1e-3)


def spread(x, count):
    return gq.parallel.replicate(x[0, 0], ["cpu"] * count)


def blocks(x):
    return gq.quantize(x, "q8_0")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c, x: gq.parallel.KVCache(2, 32, 9, THREE), errors.ShapeError, "2 heads of keys are not"),
        (lambda c, x: c.attend(x[:, :2]), errors.ShapeError, "a multiple of 3 heads"),
        (lambda c, x: c.attend(x[0, 0, 0]), errors.ShapeError, r"q has shape \(32,\)"),
        (lambda c, x: c.append(x[0]), errors.ShapeError, r"k has shape \(3, 2, 32\)"),
        (lambda c, x: c.append(x), errors.DTypeError, "v is missing"),
        (lambda c, x: c.attend(spread(x, 3)), errors.DeviceError, "heads lie on cpu, cpu"),
        (lambda c, x: c.attend(spread(x, 2)), errors.ShapeError, r"c.cuts\(rows"),
        (lambda c, x: gq.parallel.shard(blocks(x), THREE, 1), errors.ShapeError, "q is 4-D"),
        (lambda c, x: gq.parallel.shard(blocks(x[0]), THREE, "heads"), errors.ShapeError, "q is 3-D"),
        (lambda c, x: gq.attention(x, gq.parallel.shard(blocks(x), THREE, "heads"), x), errors.DTypeError,
         "divided by heads"),
        (lambda c, x: gq.attention(x, x, x, alibi=np.ones(2)), errors.ShapeError, "slopes have shape"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    c = gq.parallel.KVCache(3, 32, 9, ["cpu"] * 2)
    with pytest.raises(error, match=words):
        call(c, np.ones((1, 3, 2, 32), np.float32))
    assert len(c) == 0
