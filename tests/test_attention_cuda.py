"""Attention on a GPU against float64: types, widths, heads, all that hides positions, recordings."""

from __future__ import annotations

import attention_cases as cases
import ml_dtypes
import numpy as np
import pytest
from attention_cases import cache

import ggmlq as gq

pytestmark = pytest.mark.cuda
HALF, BFLOAT = 2.0**-11, 2.0**-8  # the most that rounding changes a number, beside it


def cupy():
    return pytest.importorskip("cupy")


def on_device(x):
    if isinstance(x, gq.QuantArray):
        return x.to("cuda")
    return cupy().asarray(x) if isinstance(x, np.ndarray) else x


def limit(q, k, v, options):
    """The most that a result may be off, beside the largest value: weights are exp of rounded scores."""
    eps = BFLOAT if "bf16" in {getattr(getattr(x, "format", None), "name", x.dtype) for x in (k, v)} else HALF
    eps = BFLOAT if ml_dtypes.bfloat16 in (getattr(k, "dtype", 0), getattr(v, "dtype", 0)) else eps
    q, k = np.asarray(q, np.float64), np.asarray(values(k), np.float64)
    k = np.where(np.isfinite(k), k, 0).repeat(q.shape[1] // k.shape[1], 1)
    scale = options.get("scale", q.shape[3] ** -0.5)
    sizes = abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(2, 3)).max(initial=0)
    return min(1.0, eps * (8 + 4 * sizes / np.sqrt(q.shape[3])) + eps * sizes * q.shape[3] ** -0.5)


def values(x):
    return x.dequantize() if isinstance(x, gq.QuantArray) else x


def agrees(q, k, v, **options):
    device = {name: on_device(option) for name, option in options.items()}
    y = gq.attention(on_device(q), on_device(k), on_device(v), **device)
    y = y.get()
    plain = {name: option for name, option in options.items() if name not in ("invariant", "dtype")}
    want = gq.reference.attention(q, k, v, **plain)
    assert y.shape == want.shape
    size = np.sqrt(np.square(np.asarray(values(v), np.float64)).mean()) if want.size else 1
    error = np.abs(y.astype(np.float64) - want).max(initial=0) / size
    assert error <= 3 * limit(q, k, v, plain), (error, limit(q, k, v, plain))
    return y


@pytest.mark.parametrize("name", cases.TYPES)
def test_types(name, fresh):
    for q, k, v, options in cases.of_types(name, fresh, (1, 30)):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("widths", cases.WIDTHS)
def test_widths(widths, fresh):
    for q, k, v, options in cases.of_widths(widths, fresh, (1, 5)):
        agrees(q, k, v, **options)


def test_floats_of_any_width(fresh):
    for q, k, v, options in cases.of_any_widths(fresh):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("queries", [1, 2, 3, 7, 64, 65, 700])
def test_rows_and_heads(queries, fresh):
    for q, k, v, options in cases.of_heads(queries, fresh):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("case", cases.OPTIONS)
def test_options(case, fresh):
    for q, k, v, options in cases.of_options(case, fresh, (9, 2)):
        agrees(q, k, v, **options)


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0"])
def test_many_rows(name, width, fresh):
    """Rows of several blocks, positions of several steps; what hides positions, and parts of them."""
    for queries, positions, heads, kv_heads, options in (
        (129, 700, 4, 2, {"causal": True}),
        (600, 600, 1, 1, {"causal": True, "dtype": np.float16}),
        (70, 2000, 2, 1, {}),
        (200, 500, 3, 3, {"window": 130, "sinks": fresh.standard_normal(3)}),
        (300, 333, 2, 2, {"causal": True, "lengths": np.array([100])}),
    ):
        q = fresh.standard_normal((1, heads, queries, width)).astype(
            [np.float32, np.float16, ml_dtypes.bfloat16][int(fresh.integers(3))]
        )
        k, v = (cache(fresh, name, 1, kv_heads, positions, width) for _ in "kv")
        agrees(q, k, v, **options)


def test_queries_that_see_nothing_give_zeros(fresh):
    for (q, k, v, options), blind in cases.of_nothing_seen(fresh):
        assert not agrees(q, k, v, **options)[:, :, :blind].any()
    q, k = on_device(q), on_device(k)
    assert gq.attention(q[:, :, :0], k, k).shape == (1, 2, 0, 32)
    assert not gq.attention(q, k[:, :, :0], k[:, :, :0]).any()


def test_positions_behind_the_last_are_never_read(fresh):
    q, k = fresh.standard_normal((2, 2, 3, 32)), fresh.standard_normal((2, 2, 300, 32))
    k[0, :, 77:], k[1, :, 130:] = np.nan, np.inf
    agrees(q, k, np.nan_to_num(k, posinf=0), lengths=np.array([77, 130]), causal=True)
    agrees(q.astype(np.float16), k.astype(np.float16), np.ones_like(k), lengths=np.array([77, 130]))


def test_keys_that_hold_the_values(fresh):
    """MLA: values are the first columns of the keys, which are decoded once."""
    q, k = fresh.standard_normal((1, 16, 3, 576)), cache(fresh, "q8_0", 1, 1, 200, 576)
    agrees(q, k, k[..., :512], causal=True)
    device = k.to("cuda")
    y = gq.attention(on_device(q), device, device[..., :512], causal=True)
    want = gq.reference.attention(q, k, k[..., :512], causal=True)
    assert gq.nmse(y.get(), want) < 1e-5


def test_bits_of_a_row_depend_on_no_other(fresh):
    """Other rows, other sequences, and again: with ``invariant`` each row has the same bits."""
    q, k, v = (
        on_device(fresh.standard_normal((2, 8, 40, 64)).astype(np.float32)),
        on_device(cache(fresh, "q8_0", 2, 2, 3000, 64)),
        on_device(cache(fresh, "q4_0", 2, 2, 3000, 64)),
    )
    y = gq.attention(q, k, v, causal=True, invariant=True)
    for b, t in ((0, 0), (1, 39), (0, 17)):
        one = gq.attention(
            q[b : b + 1, :, t : t + 1], k[b : b + 1], v[b : b + 1], causal=True, invariant=True,
            lengths=np.array([2961 + t]),
        )  # fmt: skip
        assert np.array_equal(one[0, :, 0].get(), y[b, :, t].get())
    plain = gq.attention(q, k, v, causal=True)
    for _ in range(3):
        assert np.array_equal(gq.attention(q, k, v, causal=True).get(), plain.get())


def test_recorded_with_lengths_on_the_device(fresh):
    """A graph serves all lengths: they are numbers on the device."""
    cp = cupy()
    k, v = (cache(fresh, name, 1, 2, 900, 64) for name in ("q8_0", "f16"))
    q, lengths = on_device(fresh.standard_normal((1, 8, 1, 64)).astype(np.float32)), cp.array([5])
    device = [x.to("cuda") for x in (k, v)]
    y, stream = cp.empty((1, 8, 1, 64), np.float32), cp.cuda.Stream(non_blocking=True)
    with stream:
        gq.attention(q, *device, lengths=lengths, causal=True, out=y)
        stream.begin_capture()
        gq.attention(q, *device, lengths=lengths, causal=True, out=y)
        graph = stream.end_capture()
        for length in (1, 64, 65, 500, 900):
            lengths.fill(length)
            graph.launch()
            stream.synchronize()
            want = gq.reference.attention(q.get(), k, v, lengths=[length], causal=True)
            assert gq.nmse(y.get(), want) < 1e-5, length


def test_views_and_outs(fresh):
    """Rows of a cache that lie apart, and an out of any floats and strides."""
    whole = cache(fresh, "q8_0", 3, 4, 90, 128)
    k, v = whole[1:, ::2, 10:60, 32:96], whole[:2, 1::2, ::-1, 64:][:, :, :50]
    q = on_device(fresh.standard_normal((2, 4, 2, 64)))
    device = whole.to("cuda")
    k_device, v_device = device[1:, ::2, 10:60, 32:96], device[:2, 1::2, ::-1, 64:][:, :, :50]
    out = cupy().empty((2, 4, 2, 128), np.float16)[..., ::2]
    assert gq.attention(q, k_device, v_device, out=out) is out
    want = gq.reference.attention(q.get(), k, v)
    assert gq.nmse(out.get(), want) < 1e-5
    for kind in (np.float16, ml_dtypes.bfloat16, np.float64):
        assert gq.attention(q, k_device, v_device, dtype=kind).dtype == kind


def test_any_case(fresh, rounds):
    for _ in rounds(10):
        q, k, v, options = cases.of_draw(fresh, cases.TYPES)
        agrees(q, k, v, **options)


def test_blocks_whose_values_have_another_width(fresh):
    """Few rows and a mask, which sends warps out of step: none decodes over the keys of another."""
    mask = np.where(fresh.random((2, 1, 5, 197)) < 0.5, 0, -np.inf)
    k, v = cases.cache(fresh, "iq4_nl", 2, 2, 197, 96), cases.cache(fresh, "q5_0", 2, 2, 197, 160)
    agrees(fresh.standard_normal((2, 4, 5, 96)), k, v, mask=mask)


def rows_of(fresh, *shape):
    return fresh.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rotate", [False, True])
def test_a_cache_whose_lengths_are_there(rotate, fresh):
    """The host's bytes, whatever numbers come; rows that have no room are left out."""
    cupy()
    host, there = (
        gq.KVCache(2, 64, 20, "q8_0", "q4_0", batch=3, rotate=rotate, device=name) for name in ("cpu", "cuda")
    )
    for number in range(6):
        k, v, q = rows_of(fresh, 3, 2, 4, 64), rows_of(fresh, 3, 2, 4, 64), rows_of(fresh, 3, 4, 2, 64)
        more = fresh.integers(0, 5, 3)
        room = 20 - host.lengths
        host.append(k, v, lengths=np.minimum(more, room))
        there.append(on_device(k), on_device(v), lengths=on_device(more) if number else more)
        assert np.array_equal(there.lengths.get(), host.lengths)
        for a, b in ((host.k, there.k), (host.v, there.v)):
            assert np.array_equal(a.raw, b.raw.get())
        assert gq.nmse(there.attend(on_device(q), causal=True).get(), host.attend(q, causal=True)) < 1e-5
    n = fresh.integers(0, 9, 3)
    host.truncate(n)
    there.truncate(on_device(n))
    assert np.array_equal(there.lengths.get(), host.lengths)


def test_a_recorded_cache_goes_on(fresh):
    cp = cupy()
    host, there = (gq.KVCache(2, 64, 300, rotate=True, device=name) for name in ("cpu", "cuda"))
    k, v, q = rows_of(fresh, 1, 2, 200, 64), rows_of(fresh, 1, 2, 200, 64), rows_of(fresh, 1, 8, 1, 64)
    host.append(k, v)
    there.append(on_device(k), on_device(v))
    operands = [on_device(x) for x in (k[:, :, :1].copy(), v[:, :, :1].copy(), q)]
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        there.append(*operands[:2])
        there.attend(operands[2], causal=True)
        there.truncate(200)
        stream.begin_capture()
        there.append(*operands[:2])
        y = there.attend(operands[2], causal=True)
        graph = stream.end_capture()
        for number in range(4):
            fresh_rows = [rows_of(fresh, *x.shape) for x in operands]
            for operand, x in zip(operands, fresh_rows, strict=True):
                operand.set(x)
            graph.launch()
            stream.synchronize()
            host.append(*fresh_rows[:2])
            assert gq.nmse(y.get(), host.attend(fresh_rows[2], causal=True)) < 1e-5, number
        there.append(*operands[:2])  # what was recorded stays
        graph.launch()
        assert len(there) == 206


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("name", ["q8_0", "f16"])
def test_values_within_keys_are_read_where_they_are(name, queries, fresh):
    cupy()
    c = gq.KVCache(1, 576, 300, name, width_v=512, shared=True, device="cuda")
    c.append(on_device(rows_of(fresh, 1, 1, 200, 576)))
    q, k = rows_of(fresh, 1, 16, queries, 576), c.k.to("cpu")[:, :, :200]
    want = gq.reference.attention(q, k, k[..., :512], causal=True)
    assert c.v.strided.data.ptr == c.k.raw.data.ptr
    floats = on_device(k.dequantize())
    there = c.k[:, :, :200]
    for y in (
        c.attend(on_device(q), causal=True),
        gq.attention(on_device(q), there, there[..., :512], causal=True),
        gq.attention(on_device(q), floats, floats[..., :512], causal=True),
    ):
        assert gq.nmse(y.get(), want) < 1e-5


def test_heads_on_cards(fresh):
    """Both parts on one card where there is no other."""
    cp = cupy()
    names = [f"cuda:{i % cp.cuda.runtime.getDeviceCount()}" for i in range(2)]
    k, v = (cache(fresh, "q8_0", 2, 3, 90, 64) for _ in "kv")
    q, sinks = rows_of(fresh, 2, 6, 2, 64), fresh.standard_normal(6)
    sharded = [gq.parallel.shard(x, names, "heads") for x in (k, v)]
    y = gq.attention(on_device(q), *sharded, causal=True, sinks=on_device(sinks), alibi=8.0)
    want = gq.reference.attention(q, k, v, causal=True, sinks=sinks, alibi=8.0)
    assert gq.nmse(y.get(), want) < 1e-5
    whole, parts = (
        gq.KVCache(3, 64, 50, batch=2, device="cuda"),
        gq.parallel.KVCache(3, 64, 50, names, batch=2),
    )
    for c in (whole, parts):
        c.append(on_device(rows_of(fresh, 2, 3, 9, 64) * 0 + 1), on_device(q[:, :3, :1].repeat(9, 2)))
    assert gq.nmse(parts.attend(on_device(q)).get(), whole.attend(on_device(q)).get()) < 1e-5
