"""Products that come again run from plans: the same bits, nothing taken that is not the same product."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cpu.machine import plans
from ggmlq.testing.blocks import random_blocks

FORMATS = ("q4_0", "q8_0", "q4_K", "q6_K", "iq2_xxs", "q8_1")


def weights(name, n, k, seed=0):
    fmt = gq.formats[name]
    raw = random_blocks(fmt, n, k // fmt.block_size, seed=seed)
    return gq.QuantArray.from_bytes(raw.tobytes(), fmt, (n, k))


@pytest.fixture
def runs(monkeypatch):
    """How often a plan was run."""
    found, run = [], plans.Plan.__call__

    def counted(plan, *given):
        found.append(plan)
        run(plan, *given)

    monkeypatch.setattr(plans.Plan, "__call__", counted)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_product_that_comes_again(name, fresh, runs):
    n, k = int(fresh.integers(1, 300)), 256 * int(fresh.integers(1, 9))
    q = weights(name, n, k, int(fresh.integers(99)))
    for m in (1, 2, 5):
        x, other = fresh.standard_normal((2, m, k)).astype(np.float32)
        same = gq.QuantArray.from_bytes(q.raw.tobytes(), name, (n, k))
        want = gq.linear(x, q), gq.linear(other, same)
        before = len(runs)
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
    assert not runs
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
    gq.linear(x, q)
    before = gq.linear(x, q)
    q.blocks["d"] *= 2
    assert np.array_equal(gq.linear(x, q), 2 * before)
    assert not runs


def test_a_plan_goes_with_what_the_array_keeps(fresh, runs):
    q = weights("q4_K", 40, 256)
    x = fresh.standard_normal((1, 256)).astype(np.float32)
    want = gq.linear(x, q)
    gq.linear(x, q)
    (plan,) = runs
    gone = weakref.ref(plan.kept[-1])
    runs.clear()
    del plan
    q.drop_prepared()
    gc.collect()
    assert gone() is None
    assert np.array_equal(gq.linear(x, q), want)
    assert not runs


def test_plans_of_many_rows_are_not_kept(fresh, runs):
    q = weights("q4_0", 40, 4096)
    x = fresh.standard_normal((40, 4096)).astype(np.float32)
    assert np.array_equal(gq.linear(x, q), gq.linear(x, q))
    assert not runs


def test_many_threads_share_a_plan(fresh, runs):
    q = weights("q6_K", 300, 512)
    xs = fresh.standard_normal((8, 3, 512)).astype(np.float32)
    want, wrong = [gq.linear(x, q) for x in xs], []

    def work(i):
        for _ in range(200):
            if not np.array_equal(gq.linear(xs[i], q), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(runs) >= 1600
