"""Products that come again run from plans: the same bits, nothing taken that is not the same product.

The first call keeps a plan, the second one records its launches, and those after it run these.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from at_once import at_once

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.buffers import address_of
from ggmlq.cpu.machine import recorded
from ggmlq.cpu.panels import multiply as panels_multiply
from ggmlq.dispatch.ladder import rungs
from ggmlq.dispatch.problems import Linear

FORMATS = ("q4_0", "q8_0", "q4_K", "q6_K", "iq2_xxs", "q8_1")


def weights(name, n, k, seed=0):
    fmt = gq.formats[name]
    raw = random_blocks(fmt, n, k // fmt.block_size, seed=seed)
    return gq.QuantArray.from_bytes(raw.tobytes(), fmt, (n, k))


@pytest.fixture
def runs(monkeypatch):
    """The number of times that recorded launches were run."""
    found, run = [], recorded.RecordedLaunches.__call__

    def counted(plan, *given):
        found.append(plan)
        run(plan, *given)

    monkeypatch.setattr(recorded.RecordedLaunches, "__call__", counted)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_product_that_comes_again(name, fresh, runs):
    n, k = int(fresh.integers(1, 300)), 256 * int(fresh.integers(1, 9))
    q = weights(name, n, k, int(fresh.integers(99)))
    for m in (1, 2, 5):
        x, other = fresh.standard_normal((2, m, k)).astype(np.float32)
        same = gq.QuantArray.from_bytes(q.raw.tobytes(), name, (n, k))
        want, before = (gq.linear(x, q), gq.linear(other, same)), len(runs)
        assert np.array_equal(gq.linear(x, q), want[0], equal_nan=True)
        assert len(runs) == before  # it was recorded
        assert np.array_equal(gq.linear(x, q), want[0], equal_nan=True)
        assert np.array_equal(other @ q.T, want[1], equal_nan=True)
        assert len(runs) == before + 2
        out = np.full((m, n), np.nan, np.float32)
        assert gq.linear(other, q, out=out) is out
        assert np.array_equal(out, want[1], equal_nan=True)
        assert len(runs) == before + 3


def test_what_is_another_product_takes_no_plan(fresh, runs):
    q = weights("q4_0", 40, 256)
    x = fresh.standard_normal((2, 256)).astype(np.float32)
    want, bias = gq.linear(x, q), fresh.standard_normal(40).astype(np.float32)
    assert np.array_equal(gq.linear(x, q), want)
    same = [
        (gq.linear(x.astype(np.float64), q), want),
        (gq.linear(np.asfortranarray(x), q), want),
        (gq.linear(np.repeat(x, 2, axis=1)[:, ::2], q), want),
        (gq.linear(x, q, bias=bias), want + bias),
        (gq.linear(x, q, dtype=np.float64), want),
        (gq.linear(x[None], q), want[None]),
        (gq.linear(x[0], q), want[0]),
        (gq.linear(x, q, out=np.empty((2, 40), np.float64)), want),
        (gq.linear(x, q, out=np.empty((40, 2), np.float32).T), want),
    ]
    for found, wanted in same:
        assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert len(runs) == 4  # for bias, dtype and out the plan makes the sums
    half = np.full((2, 40), np.nan, np.float16)
    assert np.array_equal(gq.linear(x, q, dtype=np.float16), want.astype(np.float16))
    assert np.array_equal(gq.linear(x, q, bias=bias, out=half), (want + bias).astype(np.float16))
    assert np.array_equal(gq.linear(x, q, residual=bias), want + bias)
    assert np.array_equal(gq.linear(x, q, residual=want, dtype=np.float16), (want + want).astype(np.float16))
    assert len(runs) == 8  # and for results that are rounded, and a residual
    room = np.zeros((2, 256), np.float32)
    room[...] = x
    gq.linear(room, q, out=room[:, :40].copy())
    over = room.reshape(-1)[40 : 40 + 80].reshape(2, 40)  # which lies in x
    assert np.array_equal(gq.linear(room, q, out=over), want)
    for wrong in ({"kernel": "cpu:nothing"}, {"arithmetic": "q9"}, {"kernel": []}):
        with pytest.raises(gq.GGMLQError):
            gq.linear(x, q, **wrong)
    with pytest.raises(gq.GGMLQError):
        gq.linear(x[:, :32], q)
    assert np.array_equal(gq.linear(x, q, arithmetic="f32"), gq.linear(x, q, kernel="cpu:dequant"))


def test_weights_that_may_be_written_to_have_none(fresh, runs):
    q = weights("q8_0", 40, 256).copy()
    x = fresh.standard_normal((1, 256)).astype(np.float32)
    for _ in range(3):
        before = gq.linear(x, q)
    for _ in range(3):
        q.blocks["d"] *= 2
        before *= 2
        assert np.array_equal(gq.linear(x, q), before)
    assert not runs


def test_a_plan_goes_with_what_the_array_keeps(fresh, runs):
    q = weights("q4_K", 40, 256)
    x = fresh.standard_normal((1, 256)).astype(np.float32)
    want = gq.linear(x, q)
    for _ in range(2):
        gq.linear(x, q)
    (plan,) = runs
    gone = weakref.ref(plan.prepared[-1])
    runs.clear()
    del plan
    q.drop_prepared()
    gc.collect()
    assert gone() is None
    for _ in range(2):
        assert np.array_equal(gq.linear(x, q), want)
        assert not runs
    assert np.array_equal(gq.linear(x, q), want)
    assert len(runs) == 1


def test_memory_between_kernels_of_many_rows_is_not_kept(fresh, runs):
    q = weights("q4_0", 40, 4096)
    x = fresh.standard_normal((40, 4096)).astype(np.float32)
    want = gq.linear(x, q)
    for _ in range(3):
        assert np.array_equal(gq.linear(x, q), want)
    assert len(runs) == 2
    assert not any(blocks for tables in runs[0]._free for blocks in tables.memory[:1])


def test_products_of_very_many_rows_have_no_plan(fresh, runs, monkeypatch):
    monkeypatch.setattr(recorded, "MOST", 40 * 4096)
    q = weights("q4_0", 40, 4096)
    x = fresh.standard_normal((40, 4096)).astype(np.float32)
    want = gq.linear(x, q)
    for _ in range(3):
        assert np.array_equal(gq.linear(x, q), want)
    assert not runs


def plan_of(rung, x, q, y):
    """The recorded launches of a rung."""
    return recorded.recorded_product(
        lambda x, y: rung.launch(x, q, y), (x,), y, lambda: (q.parts(), q.prepared_copies()),
        y.size * q.shape[1],
    )  # fmt: skip


@pytest.mark.parametrize(("name", "nbytes"), [("q4_0", panels_multiply.X_BYTES), ("q4_K", 1)])
def test_a_plan_of_many_rows_takes_its_memory_anew_for_each_call(name, nbytes, fresh, monkeypatch):
    """With so many bytes of rows at a time, all of them together or a few after the other."""
    monkeypatch.setattr(panels_multiply, "X_BYTES", nbytes)
    q, m = weights(name, 70, 1024), 130
    xs, want, wrong = fresh.standard_normal((4, m, 1024)).astype(np.float32), np.empty((4, m, 70)), []
    for rung in rungs("linear", "cpu"):
        if not rung.repeats or rung.refuses(Linear(q.format, m, 70, 1024, device="cpu")):
            continue
        out = np.empty((4, m, 70), np.float32)
        plan = plan_of(rung, xs[0], q, out[0])
        for i, x in enumerate(xs):
            room = np.full((m, 70), np.nan, np.float32)
            rung.launch(x, q, room)
            want[i] = room
        assert np.array_equal(out[0], want[0])

        def work(i, plan=plan):
            for _ in range(20):
                y = np.full((m, 70), np.nan, np.float32)
                plan(address_of(xs[i]), address_of(y))
                if not np.array_equal(y, want[i]):
                    wrong.append(i)

        at_once(work, len(xs))
        assert not wrong
        assert not any(blocks for tables in plan._free for blocks in tables.memory[:1])
        out[...] = np.nan
        with monkeypatch.context() as patch:
            patch.setattr(recorded, "MOST", xs[0].nbytes - 1)
            assert plan_of(rung, xs[1], q, out[1]) is None
        assert np.array_equal(out[1], want[1])


def test_many_threads_share_a_plan(fresh, runs):
    q = weights("q6_K", 300, 512)
    xs = fresh.standard_normal((8, 3, 512)).astype(np.float32)
    want, wrong = [gq.linear(x, q) for x in xs], []  # recorded in these calls

    def work(i):
        for _ in range(200):
            if not np.array_equal(gq.linear(xs[i], q), want[i]):
                wrong.append(i)

    at_once(work, len(xs))
    assert not wrong
    assert len(runs) >= 1600


# --- weights with scales ------------------------------------------------------------------------

SCALED = (
    ("int8", (1, None), ("int8", (1, None))),
    ("int8", (128, 128), ("int8", (1, 128))),
    ("int8_full", (1, None), ("uint8", (1, None))),
    ("e4m3", (128, 128), ("e4m3", (1, 128))),
    ("e5m2", (1, 64), ("e4m3", (1, 64))),
)


@pytest.fixture(scope="module", autouse=True)
def quantizers():
    """Kernels for activations that are not in the packs are compiled for an array that is worth it."""
    for *_, how in SCALED:
        gq.quantize_scaled(np.ones((2048, 512), np.float32), *how).dequantize()


def scaled(fresh, code, tile, n, k):
    return gq.quantize_scaled(
        fresh.standard_normal((n, k)).astype(np.float32), code, tile, ragged="pad", zeros=code == "int8_full"
    )


@pytest.mark.parametrize(("code", "tile", "how"), SCALED, ids=lambda each: str(each).replace(" ", ""))
def test_a_scaled_product_that_comes_again(code, tile, how, fresh, runs):
    n, k = int(fresh.integers(1, 200)), int(fresh.integers(64, 700))
    w = scaled(fresh, code, tile, n, k)
    for m in (1, 2, 5):
        x, other = fresh.standard_normal((2, m, k)).astype(np.float32)
        codes = [gq.quantize_scaled(each, *how, ragged="pad") for each in (x, other)]
        want = [
            gq.scaled_linear(each, gq.ScaledArray(w.codes, w.scales, w.code, w.tile, w.zeros))
            for each in codes
        ]
        for given, more in (((x, other), {"activations": how}), (codes, {})):
            for _ in range(2):
                for each, wanted in zip(given, want, strict=True):
                    assert np.array_equal(gq.scaled_linear(each, w, **more), wanted)
            out = np.full((m, n), np.nan, np.float32)
            before = len(runs)
            assert gq.scaled_linear(given[1], w, out=out, **more) is out
            assert np.array_equal(out, want[1])
            assert len(runs) == before + 1


def test_what_is_another_scaled_product_takes_no_plan(fresh, runs):
    w = scaled(fresh, "int8", (1, None), 40, 128)
    x = fresh.standard_normal((2, 128)).astype(np.float32)
    s = gq.quantize_scaled(x, "int8", (1, None))
    want, bias = gq.scaled_linear(s, w), fresh.standard_normal(40).astype(np.float32)
    assert np.array_equal(gq.scaled_linear(s, w), want)
    wide = np.zeros((2, 300), np.int8)
    wide[:, 5:133] = s.codes
    same = [
        (gq.scaled_linear(gq.ScaledArray(wide[:, 5:133], s.scales, "int8", (1, None)), w), want),
        (gq.scaled_linear(gq.ScaledArray(s.codes, s.scales.astype(np.float32), "int8", (1, 128)), w), want),
        (gq.scaled_linear(x, w), want),
        (gq.scaled_linear(x, w, activations=["int8", (1, None)]), want),
        (gq.scaled_linear(np.asfortranarray(x), w), want),
        (gq.scaled_linear(x.astype(np.float64), w), want),
        (gq.scaled_linear(s, w, bias=bias), want + bias),
        (gq.scaled_linear(s, w, dtype=np.float64), want),
        (gq.scaled_linear(s, w, out=np.empty((40, 2), np.float32).T), want),
        (gq.scaled_linear(s, w, accumulate="int64"), want),
        (gq.scaled_linear(s, w, kernel="cpu:doubles"), want),
    ]
    for found, wanted in same:
        assert np.array_equal(found, wanted)
    assert len(runs) == 3  # for bias, dtype and out the plan makes the sums
    coded = gq.scaled_linear(s, w, requantize=("int8", 0.5))
    assert np.array_equal(coded.codes, gq.quantize_scaled(want, "int8", (None, None), scales=0.5).codes)
    room = np.frombuffer(bytearray(4 * 80), np.float32).reshape(2, 40)  # memory that x may lie in too
    over = room.reshape(-1).view(np.int8)[: 2 * 128].reshape(2, 128)
    over[...] = s.codes
    assert np.array_equal(
        gq.scaled_linear(gq.ScaledArray(over, s.scales, "int8", (1, None)), w, out=room), want
    )
    for wrong in (
        {"kernel": "cpu:nothing"},
        {"kernel": []},
        {"accumulate": "int9"},
        {"activations": ("int8", 3)},
    ):
        with pytest.raises(gq.GGMLQError):
            gq.scaled_linear(x, w, **wrong)
    with pytest.raises(gq.GGMLQError):
        gq.scaled_linear(s, w, activations=("int8", (1, None)))


def test_scaled_weights_that_may_be_written_to_have_none(fresh, runs):
    w = scaled(fresh, "int8", (1, None), 40, 128).copy()
    s = gq.quantize_scaled(fresh.standard_normal((1, 128)), "int8", (1, None))
    for _ in range(3):
        before = gq.scaled_linear(s, w)
    for _ in range(3):
        w.scales[...] *= 2
        before *= 2
        assert np.array_equal(gq.scaled_linear(s, w), before)
    assert not runs


def test_a_scaled_plan_goes_with_what_the_array_keeps(fresh, runs):
    w = scaled(fresh, "int8", (1, None), 40, 128)
    s = gq.quantize_scaled(fresh.standard_normal((1, 128)), "int8", (1, None))
    want = gq.scaled_linear(s, w)
    for _ in range(2):
        assert np.array_equal(gq.scaled_linear(s, w), want)
    (plan,) = runs
    assert plan.prepared
    runs.clear()
    w.drop_prepared()
    for _ in range(2):
        assert np.array_equal(gq.scaled_linear(s, w), want)
        assert not runs


def test_many_threads_share_a_scaled_plan(fresh, runs):
    w = scaled(fresh, "e4m3", (128, 128), 300, 512)
    xs = fresh.standard_normal((8, 3, 512)).astype(np.float32)
    want, wrong = [gq.scaled_linear(x, w) for x in xs], []

    def work(i):
        for _ in range(100):
            if not np.array_equal(gq.scaled_linear(xs[i], w), want[i]):
                wrong.append(i)

    at_once(work, len(xs))
    assert not wrong
    assert len(runs) >= 800


def test_operands_that_share_memory(fresh):
    """Each product three times, of x that is a part of w, or whose parts lie in one another's extent."""
    s = gq.quantize_scaled(fresh.standard_normal((12, 256)), "e4m3", (1, 128))
    whole = np.asarray(s, np.float64)
    for _ in range(3):
        for first in (0, 4, 8):
            y = gq.scaled_linear(s[first : first + 4], s)
            assert np.allclose(y, whole[first : first + 4] @ whole.T, rtol=1e-5, atol=1e-3)
        other = gq.quantize_scaled(fresh.standard_normal((12, 256)), "e4m3", (1, 128))
        for x in (s, other):
            want = np.asarray(x, np.float64) @ whole.T
            assert np.allclose(gq.scaled_linear(x, s), want, rtol=1e-5, atol=1e-3)
    codes = np.frombuffer(fresh.integers(-127, 128, 3 * 64, np.int8).tobytes(), np.int8).reshape(3, 64)
    scales = [np.frombuffer(np.float32(each).tobytes(), np.float32).reshape(1, 1) for each in (1, 4)]
    w = gq.ScaledArray(codes, scales[0], "int8", (None, None))
    for _ in range(3):
        for scale in scales:
            x = gq.ScaledArray(codes[:1], scale, "int8", (None, None))
            want = codes[:1].astype(int) @ codes.T.astype(int) * scale
            assert np.array_equal(gq.scaled_linear(x, w), want)


def odd(fresh, m, k):
    """Codes and scales that lie in memory in some odd way."""
    codes = fresh.integers(-127, 128, (m, k)).astype(np.int8)
    scales = fresh.uniform(0.5, 2, (m, 2)).astype(np.float32)
    way = fresh.integers(6)
    if way == 0:
        codes = np.ascontiguousarray(codes[:, ::-1])[:, ::-1]
    elif way == 1:
        codes = np.ascontiguousarray(codes[::-1])[::-1]
    elif way == 2:
        both = np.zeros((m, k + 16), np.int8)  # a row of codes and its scales, one after the other
        both[:, :k], both[:, k : k + 8] = codes, scales.view(np.int8)
        codes, scales = both[:, :k], both[:, k : k + 8].view(np.float32)
    elif way == 3:
        scales = np.ascontiguousarray(scales.T).T
    elif way == 4:
        scales = np.repeat(scales, 3, axis=1)[:, ::3]
    return gq.ScaledArray(codes, scales, "int8", (1, k // 2))


def test_operands_that_lie_in_odd_ways(fresh, rounds):
    k = 8 * int(fresh.integers(2, 40))
    w = gq.quantize_scaled(fresh.standard_normal((20, k)), "int8", (1, k // 2))
    values = np.asarray(w, np.float64)
    for _ in rounds(2):
        x = odd(fresh, int(fresh.integers(1, 4)), k)
        want = np.asarray(x, np.float64) @ values.T
        for _ in range(2):
            assert np.allclose(gq.scaled_linear(x, w), want, rtol=1e-5, atol=1e-3)


def test_what_else_is_asked_runs_the_same_plan(fresh, monkeypatch):
    made, plan = [], recorded.recorded_product

    def counted(*arguments):
        made.append(arguments)
        return plan(*arguments)

    monkeypatch.setattr(recorded, "recorded_product", counted)
    w, q = scaled(fresh, "int8", (1, None), 40, 128), weights("q8_0", 40, 128)
    x, bias = fresh.standard_normal((2, 128)).astype(np.float32), np.ones(40, np.float32)
    for multiply, by in ((gq.scaled_linear, w), (gq.linear, q)):
        want = multiply(x, by) + bias
        for _ in range(3):
            assert np.array_equal(multiply(x, by, bias=bias), want)
            assert multiply(x, by, dtype=np.float64).dtype == np.float64
        for given in (bias.astype(np.float16), bias.tolist(), np.repeat(bias, 2)[::2]):
            assert np.array_equal(multiply(x, by, bias=given), want)
        room = np.zeros((2, 40), np.float32)
        room[0] = bias
        assert np.array_equal(multiply(x, by, bias=room[0], out=room), want)  # which it lies in
        with pytest.raises(gq.GGMLQError):
            multiply(x, by, bias=bias[:1])
    assert len(made) == 2


def test_how_floats_are_quantized_may_be_said_with_lists(fresh):
    w = scaled(fresh, "int8", (1, 128), 40, 256)
    x = fresh.standard_normal((2, 256)).astype(np.float32)
    want = gq.scaled_linear(x, w, activations=("int8", (1, 128)))
    for how in (("int8", [1, 128]), ["int8", (1, 128)]):
        for _ in range(2):
            assert np.array_equal(gq.scaled_linear(x, w, activations=how), want)
    for _ in range(2):
        with pytest.raises(gq.GGMLQError, match="positive"):
            gq.scaled_linear(x, w, activations=("int8", (1.0, 128)))


def test_a_plan_without_memory_says_so(fresh, monkeypatch):
    w, q = scaled(fresh, "int8", (1, None), 40, 128), weights("q8_0", 40, 128)
    x = fresh.standard_normal((2, 128)).astype(np.float32)

    def none(*arguments):
        raise MemoryError

    for multiply, by in ((gq.scaled_linear, w), (gq.linear, q)):
        want = multiply(x, by)
        assert np.array_equal(multiply(x, by), want)
        with monkeypatch.context() as patch:
            patch.setattr(recorded.RecordedLaunches, "__call__", none)
            with pytest.raises(MemoryError):
                multiply(x, by, bias=np.zeros(40, np.float32))
        assert np.array_equal(multiply(x, by), want)
