"""Attention on the host against float64: types, widths, groups of heads, and all that hides positions."""

from __future__ import annotations

import attention_cases as cases
import numpy as np
import pytest
from attention_cases import cache

import ggmlq as gq
from ggmlq import errors
from ggmlq.base.threads import at_most
from ggmlq.cpu.attention import drive

EPS = 2.0**-22


def bound(q, k, scale, softcap=0.0, **_):
    """The most that the worst row may be off: weights are exp of scores, whose rounding grows with them."""
    group = q.shape[1] // k.shape[1]
    largest = np.nanmax(np.abs(q.astype(np.float64) @ k.repeat(group, 1).swapaxes(2, 3)), initial=0)
    return (EPS * (8 + largest * (q.shape[3] ** -0.5 if scale is None else scale))) ** 2


def plain(q, k, v, seen, scale=None, bias=0.0, cap=0.0, sinks=None):
    """One of the oracle's results, by NumPy alone: ``seen`` and ``bias`` broadcast to [B, H, T, S]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.asarray(rows, np.float64).repeat(group, 1) for rows in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    s = np.where(seen, (cap * np.tanh(s / cap) if cap else s) + bias, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[None, :, None, None] - s.max(-1, keepdims=True))
    return e / total @ v


def off(y, want, v):
    """The worst row of a result."""
    assert y.shape == want.shape
    size = np.square(v[np.isfinite(v)], dtype=np.float64).mean() * want.shape[-1]
    return (((y - want) ** 2).sum(-1) / np.maximum((want**2).sum(-1), 1e-3 * size)).max(initial=0)


def agrees(q, k, v, **options):
    y = gq.attention(q, k, v, arithmetic="f32", **options)
    want = gq.reference.attention(q, k, v, **{n: x for n, x in options.items() if n != "invariant"})
    keys, values = ((x if isinstance(x, np.ndarray) else x.dequantize()).astype(np.float32) for x in (k, v))
    keys[~np.isfinite(keys)] = 0
    assert off(y, want, values) <= bound(q.astype(np.float32), keys, **{"scale": None} | options)
    return y


# --- the oracle -------------------------------------------------------------------------------


def test_the_oracle_is_what_numpy_computes(fresh):
    q, k, v = (
        fresh.standard_normal((2, 6, 5, 32)),
        cache(fresh, "q5_0", 2, 2, 9, 32),
        fresh.standard_normal((2, 2, 9, 7)),
    )
    own, at = np.arange(5)[:, None] + 4, np.arange(9)
    mask, sinks = fresh.standard_normal((2, 1, 5, 9)), fresh.standard_normal(6)
    mask[..., 4] = np.abs(mask[..., 4]) + 0.1  # each query sees some position
    for options, facts in (
        ({}, {"seen": True}),
        ({"causal": True, "scale": 0.3}, {"seen": at <= own, "scale": 0.3}),
        ({"window": 3}, {"seen": (at <= own) & (at > own - 3)}),
        ({"mask": mask, "softcap": 2.0}, {"seen": True, "bias": mask, "cap": 2.0}),
        ({"mask": mask > 0, "sinks": sinks}, {"seen": mask > 0, "sinks": sinks}),
    ):
        want = plain(q, k, v, **facts)
        assert np.allclose(gq.reference.attention(q, k, v, **options), want, rtol=1e-12, atol=1e-12), options


def test_positions_of_each_sequence_and_slopes(fresh):
    q, k, v = (fresh.standard_normal((2, n, s, 8)) for n, s in ((4, 3), (4, 9), (4, 9)))
    slopes = 0.25 ** np.arange(1, 5)  # 2**(-8 / 4) to the powers of ALiBi's paper
    for lengths, causal in (([4, 9], True), ([4, 9], False), ([9, 9], False)):
        options = {"lengths": lengths, "causal": causal, "alibi": 8.0}
        got, named = (
            gq.reference.attention(q, k, v, **options | more) for more in ({}, {"arithmetic": "f32"})
        )
        y = gq.attention(q, k, v, **options)
        for b, length in enumerate(lengths):
            own, at = np.arange(3)[:, None] + length - 3, np.arange(length)
            one = [x[b : b + 1, :, : length if x is not q else None] for x in (q, k, v)]
            bias = -slopes[:, None, None] * abs(at - own)  # later positions are as far as earlier ones
            want = plain(*one, at <= own if causal else True, bias=bias)[0]
            assert np.allclose(got[b], want), (options, b)
            assert np.allclose(y[b], want, atol=1e-5), (options, b)
            assert np.allclose(named[b], want, atol=1e-5), (options, b)


# --- the kernel -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.TYPES)
def test_types(name, fresh):
    for q, k, v, options in cases.of_types(name, fresh, (3,)):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("widths", cases.WIDTHS)
def test_widths(widths, fresh):
    for q, k, v, options in cases.of_widths(widths, fresh, (5,)):
        agrees(q, k, v, **options)


def test_floats_of_any_width(fresh):
    for q, k, v, options in cases.of_any_widths(fresh):
        agrees(q, k, v, **options)
        assert np.array_equal(
            gq.attention(q, k.swapaxes(1, 2).copy().swapaxes(1, 2), v[..., ::-1]),
            gq.attention(q, k, v[..., ::-1]),
        )


@pytest.mark.parametrize("queries", [1, 2, 3, 7, 64, 65])
def test_rows_and_heads(queries, fresh):
    for q, k, v, options in cases.of_heads(queries, fresh):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("case", cases.OPTIONS)
def test_options(case, fresh):
    for q, k, v, options in cases.of_options(case, fresh, (9,)):
        agrees(q, k, v, **options)


def test_queries_that_see_nothing_give_zeros(fresh):
    for (q, k, v, options), blind in cases.of_nothing_seen(fresh):
        assert not agrees(q, k, v, **options)[:, :, :blind].any()
    assert gq.attention(q[:, :, :0], k, k).shape == (1, 2, 0, 32)
    assert not gq.attention(q, k[:, :, :0], k[:, :, :0]).any()


def test_positions_behind_the_last_are_never_read(fresh):
    q, k = fresh.standard_normal((2, 2, 3, 32)), fresh.standard_normal((2, 2, 300, 32))
    k[0, :, 77:], k[1, :, 130:] = np.nan, np.inf
    agrees(q, k, k, lengths=[77, 130], causal=True)


def test_what_is_not_finite_comes_through(fresh):
    q, k = fresh.standard_normal((1, 1, 6, 32)), fresh.standard_normal((1, 1, 70, 32))
    q[0, 0, 1, 3] = np.nan
    assert np.isnan(gq.attention(q, k, k)[0, 0]).all(1).tolist() == [False, True, *[False] * 4]
    k[0, 0, 66, 0] = np.nan
    assert np.isnan(gq.attention(q, k, k, causal=True)[0, 0]).all(1).tolist() == [False, True, *[True] * 4]
    v = np.ones((1, 1, 70, 2))
    v[0, 0, 69, 1] = np.inf
    assert np.isinf(gq.attention(np.zeros((1, 1, 1, 32)), np.ones((1, 1, 70, 32)), v)[0, 0, 0]).tolist() == [
        False,
        True,
    ]


def test_scores_that_are_huge_or_tiny(fresh):
    for scale in (1e-30, 30.0, 1e4):
        agrees(
            fresh.standard_normal((1, 2, 3, 64)),
            *(cache(fresh, "f32", 1, 1, 500, 64) for _ in "kv"),
            scale=scale,
        )


def test_bits_depend_on_nothing_else(fresh, monkeypatch):
    """Other rows, other sequences, threads and parts of the work: each row has the same bits."""
    q, k, v = (
        fresh.standard_normal((2, 8, 5, 64), np.float32),
        cache(fresh, "q8_0", 2, 2, 3000, 64),
        cache(fresh, "q4_0", 2, 2, 3000, 64),
    )
    y = gq.attention(q, k, v, causal=True, invariant=True)
    for parts in (1, 1 << 20):
        monkeypatch.setattr(drive, "PARTS", parts)
        for threads in (1, 2):
            with at_most(threads):
                assert np.array_equal(gq.attention(q, k, v, causal=True), y), (parts, threads)
    for b in range(2):
        for t in range(5):
            one = gq.attention(
                q[b : b + 1, :, t : t + 1], k[b : b + 1], v[b : b + 1], causal=True, lengths=[2996 + t]
            )
            assert np.array_equal(one[0, :, 0], y[b, :, t])
    assert np.array_equal(gq.attention(q[:, :4], k[:, :1], v[:, :1], causal=True), y[:, :4])


def test_keys_that_hold_the_values(fresh):
    """MLA: values are the first columns of the keys, which are decoded once."""
    q, k = fresh.standard_normal((1, 16, 3, 192)), cache(fresh, "q8_0", 1, 1, 200, 192)
    y = agrees(q, k, k[..., :128], causal=True)
    assert np.array_equal(y, gq.attention(q, k, k[..., :128].copy(), causal=True))


def test_scaled_arrays(fresh):
    k = gq.quantize_scaled(fresh.standard_normal((2, 2, 50, 64)), "e4m3", (1, None))
    agrees(fresh.standard_normal((2, 4, 3, 64)), k, k, causal=True)


def test_views_of_larger_arrays(fresh):
    """Rows of a cache that lie apart, and an out of any floats and strides."""
    whole = cache(fresh, "q8_0", 3, 4, 90, 128)
    k, v = whole[1:, ::2, 10:60, 32:96], whole[:2, 1::2, ::-1, 64:][:, :, :50]
    q, out = fresh.standard_normal((2, 4, 2, 64)), np.empty((2, 4, 2, 128), np.float16)[..., ::2]
    assert gq.attention(q, k, v, out=out) is out
    want = gq.attention(q, k.copy(), v.copy(), dtype=np.float16)
    assert np.array_equal(out, want)
    assert want.dtype == np.float16


def test_any_case(fresh, rounds):
    for _ in rounds(3):
        q, k, v, options = cases.of_draw(fresh, cases.TYPES[:6])
        agrees(q, k, v, **options)


def test_numbers_of_the_kernel():
    assert drive.STRETCH % drive.TILE == 0
    assert drive.TILE % drive.LANES == 0


def arrays(*shapes):
    return [np.ones(shape, np.float32) for shape in shapes]


def in_halves(q, k, **options):
    return gq.reference.attention(q, k, k, arithmetic="ggml-cpu-attention", **options)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda q, k: in_halves(q, k, alibi=np.ones(4)), errors.DTypeError, "takes the largest bias"),
        (lambda q, k: gq.attention(q[0], k, k), errors.ShapeError, r"shapes are q \(4, 2, 32\)"),
        (lambda q, k: gq.attention(q, k[:, :, :, :16], k), errors.ShapeError, "shapes that agree"),
        (lambda q, k: gq.attention(q[:, :3], k, k), errors.ShapeError, "H a multiple of HK"),
        (lambda q, k: gq.attention(q, k, k[:, :, 1:]), errors.ShapeError, "shapes that agree"),
        (lambda q, k: gq.attention(q, k, k, lengths=[9]), errors.BlockIndexError, "k has 8 positions"),
        (lambda q, k: gq.attention(q, k, k, lengths=[1, 2]), errors.ShapeError, "one integer for each of 1"),
        (lambda q, k: gq.attention(q, k, k, mask=np.zeros((3, 8))), errors.ShapeError, "the mask has shape"),
        (lambda q, k: gq.attention(q, k, k, sinks=np.zeros(2)), errors.ShapeError, "one logit for each"),
        (lambda q, k: gq.attention(q, k, k, window=0), errors.DTypeError, "window is 0"),
        (lambda q, k: gq.attention(q, k, k, window=np.nan), errors.DTypeError, "window is nan"),
        (lambda q, k: gq.attention(q, k, k, window=2**70), errors.DTypeError, r"to 2\*\*63 - 1"),
        (lambda q, k: gq.attention(q, k, k, scale=1e39), errors.DTypeError, "a finite number; pass scale"),
        (lambda q, k: gq.attention(q, k, k, causal="no"), errors.DTypeError, "causal is 'no'; it is True or"),
        (lambda q, k: gq.attention(q, k, k, softcap=-1.0), errors.DTypeError, "softcap is -1.0"),
        (lambda q, k: gq.attention(q, k, k, kernel="cuda:x"), errors.UnsupportedError, "'cpu:rows'"),
        (lambda q, k: gq.attention(q, k, k, out=np.empty((1, 4, 2, 8))), errors.ShapeError, "out has shape"),
        (lambda q, k: gq.attention(q.astype(int), k, k), errors.DTypeError, "q is int64"),
        (lambda q, k: gq.reference.attention(q, k, k, arithmetic="q8"), errors.UnsupportedError, "'q8'"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(*arrays((1, 4, 2, 32), (1, 2, 8, 32)))


def test_lengths_and_sinks_are_tensors_too(fresh):
    torch = pytest.importorskip("torch")
    q, k = fresh.standard_normal((1, 4, 3, 32), np.float32), fresh.standard_normal((1, 2, 9, 32), np.float32)
    lengths, sinks = torch.tensor([5], dtype=torch.int32), torch.tensor([0.5, 1, -1, 2], requires_grad=True)
    y = gq.attention(torch.from_numpy(q), k, k, lengths=lengths, sinks=sinks.bfloat16())
    assert np.array_equal(y, gq.attention(q, k, k, lengths=[5], sinks=np.float32([0.5, 1, -1, 2])))
    with pytest.raises(gq.errors.ShapeError, match="lengths are float32"):
        gq.attention(q, k, k, lengths=torch.ones(1, dtype=torch.bfloat16))
