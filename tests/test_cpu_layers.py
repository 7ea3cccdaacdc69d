"""The kernels between a model's products, beside NumPy in float64."""

from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cpu.attention import drive
from ggmlq.cpu.layers import call, states
from ggmlq.formats import FORMATS
from ggmlq.model.arithmetic.kernels import Kernels, Net, Past, Routing
from ggmlq.model.step import _chosen

WIDTHS = (1, 15, 16, 31, 576, 2051)


class Wide(Kernels):
    """NumPy in float64."""

    dtype = np.float64


def near(got, want, size=4e-6):
    return np.abs(got - want).max() <= size * max(1, np.abs(want).max())


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width, fresh):
    x, y = (fresh.standard_normal((3, width)).astype(np.float32) for _ in range(2))
    weights = fresh.standard_normal(width).astype(np.float32)
    total, out = call.normed(x, weights, 1e-5, y)
    wide = x.astype(float) + y
    assert np.array_equal(total, x + y)
    assert near(out, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weights)
    both = fresh.standard_normal((2, 3 * width + 7)).astype(np.float32)
    heads = both[:, 7 : 7 + 2 * width].reshape(2, 2, width)  # the columns of a product, head by head
    want = heads / np.sqrt((heads.astype(float) ** 2).mean(-1, keepdims=True) + 1e-6) * weights
    assert near(call.normed(heads, weights, 1e-6)[1], want)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "sigmoid", "gelu", "swiglu_oai"])
def test_gates(activation, width, fresh):
    both = (fresh.standard_normal((2, 2 * width)) * 10).astype(np.float32)
    both.reshape(-1)[:4] = (200, -200, 0, 80)[: min(4, both.size)]
    gate, up = both[:, :width], both[:, width:]
    want = Kernels().gated(activation, gate.astype(float), up.astype(float))
    assert near(call.gated(activation, gate, up), want)


def test_nan_stays(fresh):
    x = np.full((1, 20), np.nan, np.float32)
    for out in (call.gated("silu", x, x), call.normed(x, x[0], 1e-5)[1], call.capped(x, 5.0)):
        assert np.isnan(out).all()


@pytest.mark.parametrize("size", [1, 17, 20_000])
def test_sums_and_numbers(size, fresh):
    x, y = (fresh.standard_normal((2, size)).astype(np.float32) for _ in range(2))
    assert np.array_equal(call.added(x, y), x + y)
    assert np.array_equal(call.added(x, y[0]), x + y[0])
    assert np.array_equal(call.times(x, 0.3), x * np.float32(0.3))
    assert near(call.capped(20 * x, 5.0), np.tanh(20.0 * x / 5) * 5)


def test_biases_of_experts(fresh):
    y, bias = (fresh.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 70), (5, 70)))
    ids = np.array([[0, 4], [4, 1], [2, 0]])
    assert np.array_equal(call.added(y, bias, ids), y + bias[ids])


# --- layers that remember by a state ----------------------------------------------------------------


def halves(fresh, rows, *shapes):
    """Arrays before some rows, and behind them; the second ones are for float64."""
    before = [fresh.standard_normal(shape).astype(np.float32) for shape in shapes]
    behind, wide = [np.full_like(x, np.nan) for x in before], [x.astype(float) for x in before]
    return Past(rows, before, behind), Past(rows, wide, [x.copy() for x in wide])


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize(("width", "taps"), [(1, 2), (64, 4), (150, 3)])
def test_convolutions(silu, width, taps, fresh):
    """Of two sequences, one with fewer rows than taps; rows are columns of a product."""
    wide = (fresh.standard_normal((8, 3 * width)) * 3).astype(np.float32)
    weights = fresh.standard_normal((width, taps)).astype(np.float32)
    pairs = [halves(fresh, rows, (taps - 1, width)) for rows in (slice(0, 1), slice(1, 8))]
    ours, theirs = zip(*pairs, strict=True)
    x = wide[:, width : 2 * width]
    assert near(states.convolved(x, weights, ours, silu), Wide().convolved(x, weights, theirs, silu))
    assert all(near(a.behind[0], b.behind[0]) for a, b in pairs)
    got, want = states.short_convolution(wide, weights, ours), Wide().short_convolution(wide, weights, theirs)
    assert near(got, want, 1e-5)
    assert all(near(a.behind[0], b.behind[0]) for a, b in pairs)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "turns"), [(4, 2, 32, True), (6, 2, 16, False), (1, 1, 128, True)]
)
def test_the_delta_rule(heads, groups, width, turns, fresh):
    """Steps of NumPy in float64, gates from one end of their range to the other."""
    whole, count = (2 * groups + heads) * width, 7
    both = fresh.standard_normal((count, whole + heads * width)).astype(np.float32)
    mixed, z = both[:, :whole], both[:, whole:]
    share, speed = (fresh.uniform(-40, 30, (count, heads)).astype(np.float32) for _ in "ab")
    run = heads if turns else heads // groups
    gates = [np.concatenate([x.reshape(count, -1, run) for x in (share, speed)], -1).reshape(count, -1)]
    gates += [gates[0][:, run:]]
    net = Net(
        fresh.standard_normal(heads).astype(np.float32), -fresh.uniform(0, 2, heads).astype(np.float32),
        fresh.standard_normal(width).astype(np.float32), groups, run, turns, 1e-6,
    )  # fmt: skip
    pairs = [halves(fresh, rows, (1, 1), (heads, width, width)) for rows in (slice(0, 2), slice(2, 7))]
    ours, theirs = zip(*pairs, strict=True)
    got, a = states.delta_net(mixed, z, gates, net, ours), Wide()
    q, k, v = np.split(mixed.astype(float), [groups * width, 2 * groups * width], 1)
    q, k, v = (x.reshape(count, -1, width) for x in (q, k, v))
    of = np.arange(heads) % groups if turns else np.arange(heads) // run
    q, k = (a.norm(x, 1e-6 / width)[:, of] / np.sqrt(width) for x in (q, k))
    forgets = a.softplus(speed.astype(float) + net.bias) * net.decay
    y = a.norm(a.delta_rule((q, k, v, forgets, a.sigmoid(share.astype(float))), theirs), 1e-6) * net.norm
    want = a.gated("silu", z.astype(float).reshape(y.shape), y).reshape(count, -1)
    assert near(got, want, 2e-5)
    assert all(near(one.behind[1], other.behind[1], 2e-5) for one, other in pairs)


def test_a_share_of_other_rows(fresh):
    x, y = (fresh.standard_normal((3, 70)).astype(np.float32) for _ in range(2))
    gate = np.array([[-200], [0], [3]], np.float32)
    assert near(call.plus_share(x, y, gate), Wide().plus_share(x, y, gate.astype(float)))


# --- a mixture of experts ---------------------------------------------------------------------------


def chosen(logits, bias, how):
    """The choice of the walk in float64, node by node."""
    config = SimpleNamespace(
        groups=how.groups, used_groups=how.used_groups, sigmoid=how.sigmoid, used_experts=how.used,
        share_of_chosen=how.of_one, expert_scale=how.scale,
    )  # fmt: skip
    weights = SimpleNamespace(optional=lambda name: None if bias is None else bias.astype(float))
    step = SimpleNamespace(
        a=Wide(), config=config, weights=weights, choices={}, tell=lambda name, x, layer: x
    )
    return _chosen(step, logits.astype(float), 0, how.after)


def routed(logits, bias, how):
    shares = how.after, how.sigmoid, how.of_one
    return call.routed(logits, bias, how.used, (how.groups, how.used_groups), shares, how.scale)


@pytest.mark.parametrize(
    "how",
    [
        Routing(8, False, False, True, 1.0, 0, 0), Routing(2, False, False, False, 2.5, 1, 1),
        Routing(4, True, False, False, 1.0, 0, 0), Routing(6, False, True, True, 2.5, 4, 2),
        Routing(24, False, False, True, 1.0, 0, 0), Routing(1, False, True, False, 0.5, 12, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("biased", [False, True])
def test_the_choice_of_experts(how, biased, fresh):
    logits = (fresh.standard_normal((9, 24)) * 3).astype(np.float32)
    bias = fresh.standard_normal(24).astype(np.float32) if biased else None
    logits[0], logits[1, ::2] = 0, -1  # of equal shares the lower numbers come first
    logits[2, 5:7] = 30, -30
    ids, weights = routed(logits, bias, how)
    want, shares = chosen(logits, bias, how)
    assert np.array_equal(ids, want)
    assert near(weights, shares, 1e-6)


@pytest.mark.parametrize("experts", [1, 16, 130])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_ids_are_experts_whatever_the_scores_are(experts, bad):
    logits = np.full((2, experts), bad, np.float32)
    logits[1, : experts // 2] = 1
    ids, weights = routed(logits, None, Routing(min(experts, 6), False, False, True, 1.0, 0, 0))
    assert all(len({*row}) == len(row) and {*row} <= {*range(experts)} for row in ids.tolist())
    assert not np.isfinite(weights[0]).all()


@pytest.mark.parametrize("width", [*WIDTHS, 1024 + 17])
def test_weighted_sums_of_experts(width, fresh):
    y, weights = (fresh.standard_normal(shape).astype(np.float32) for shape in ((3, 5, width), (3, 5)))
    assert np.array_equal(call.mixed(y, weights), Kernels().weighted_sum(y, weights))
    assert np.array_equal(call.mixed(y[:, :1].copy(), weights[:, :1].copy()), y[:, 0] * weights[:, :1])


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q4_0", "q6_K", "iq4_nl"])
def test_rows_of_an_embedding(name, fresh):
    q = gq.quantize(fresh.standard_normal((9, 256)).astype(np.float32), name)
    ids = fresh.integers(0, 9, 4)
    assert np.array_equal(call.embedded(q.format, q.raw, 256, ids), q.dequantize()[ids])


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("name", call.STORED)
def test_rope_goes_into_the_cache(name, neox, fresh):
    tokens, heads, kv, width, pairs, start, room = 3, 4, 2, 24, 8, 5, 12
    q, k, v = (fresh.standard_normal((tokens, n, width)).astype(np.float32) for n in (heads, kv, kv))
    angles = fresh.uniform(0, 7, (tokens, pairs))
    cos, sin = (part(angles).astype(np.float32) for part in (np.cos, np.sin))
    fmt = FORMATS[name]
    rows = [np.zeros((kv, room, width * fmt.dtype.itemsize), np.uint8) for _ in range(2)]
    places = [drive.CacheRows(fmt, one.ctypes.data, *one.strides[:2]) for one in rows]
    end = np.array([start + tokens])
    sequence = drive.Sequence(*places, False, kv, width, end, int(end[0]), room)
    out = call.rope_append((q, k, v), neox, cos, sin, sequence)

    def turned(x):
        y = x.astype(float)
        a, b = (
            (slice(0, pairs), slice(pairs, 2 * pairs))
            if neox
            else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        )
        y[..., a] = x[..., a] * cos[:, None] - x[..., b] * sin[:, None]
        y[..., b] = x[..., a] * sin[:, None] + x[..., b] * cos[:, None]
        return y.transpose(1, 0, 2)

    assert near(out, turned(q))
    for one, want in zip(rows, (turned(k), v.transpose(1, 0, 2)), strict=True):
        stored = gq.QuantArray.from_bytes(one, name, (kv, room, width)).dequantize()
        assert not stored[:, :start].any()
        assert not stored[:, start + tokens :].any()
        assert near(stored[:, start : start + tokens], want, {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[name])
