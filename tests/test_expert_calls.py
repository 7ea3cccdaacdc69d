"""Products with experts that come again: the same bits by the short way, which takes no other product."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
from at_once import at_once

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cpu.expert_linear import r3_panels
from ggmlq.cpu.grouped import multiply
from ggmlq.cpu.machine.workers import alone
from ggmlq.cpu.panels.multiply import panels
from ggmlq.ops import plan

E, N, K = 5, 37, 256


def experts(name="q4_K", n=N, seed=0):
    fmt = gq.formats[name]
    raw = random_blocks(fmt, E * n, K // fmt.block_size, seed=seed)
    return gq.QuantArray.from_bytes(raw.tobytes(), fmt, (E, n, K))


def again(q):
    """The same weights, with which nothing was done yet."""
    return gq.QuantArray.from_bytes(q.raw.tobytes(), q.format, q.shape)


@pytest.fixture
def short(monkeypatch):
    """Results that took the short way."""
    found, run = [], plan.experts_on_host

    def watched(*given):
        y = run(*given)
        found.extend([] if y is None else [y])
        return y

    monkeypatch.setattr(plan, "experts_on_host", watched)
    return found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("t", "u"), [(1, 2), (3, 4), (40, 2)])
def test_a_product_that_comes_again(fresh, short, apart, t, u):
    q = experts(seed=int(fresh.integers(99)))
    for _ in range(3):
        x = fresh.standard_normal((t, u, K) if apart else (t, K)).astype(np.float32)
        ids = fresh.integers(0, E, (t, u)).astype(fresh.choice([np.int8, np.int32, np.uint64, np.int64]))
        want = gq.expert_linear(x, again(q), ids)
        assert np.array_equal(gq.expert_linear(x, q, ids), want)
        out = np.full((t, u, N), np.nan, np.float32)
        assert gq.expert_linear(x, q, ids, out=out) is out
        assert np.array_equal(out, want)
        assert np.array_equal(gq.expert_linear(x, q, np.asfortranarray(ids)), want)
    assert len(short) == 3 * 3 - 1


def test_what_is_another_product_goes_the_long_way(fresh, short):
    q, ids = experts(), fresh.integers(0, E, (4, 2))
    x = fresh.standard_normal((4, K)).astype(np.float32)
    want = gq.expert_linear(x, q, ids)
    wide = np.repeat(x, 2, axis=1)
    same = [
        gq.expert_linear(x.astype(np.float64), q, ids), gq.expert_linear(np.asfortranarray(x), q, ids),
        gq.expert_linear(wide[:, ::2], q, ids), gq.expert_linear(x, q, ids.tolist()),
        gq.expert_linear(x, q, ids, dtype=np.float64), gq.expert_linear(x, q, ids, kernel="cpu:panels"),
        gq.expert_linear(x, q, ids, arithmetic="q8"), gq.expert_linear(x[:2], q, ids[:2]),
        gq.expert_linear(x, q, ids, out=np.empty((4, 2, N), np.float64)),
        gq.expert_linear(x, q, ids, out=np.empty((4, 2, 2 * N), np.float32)[..., ::2]),
    ]  # fmt: skip
    assert not short
    for found in same:
        assert np.array_equal(found, want[: len(found)])
    over = np.zeros((4, 2, K), np.float32)  # a result that lies in x
    over[:, 0] = over[:, 1] = x
    gq.expert_linear(over.copy(), q, ids)
    assert np.array_equal(gq.expert_linear(over, q, ids, out=over[..., :N]), want)
    assert not short


def test_errors_are_the_same_when_a_product_comes_again(fresh, short):
    q, ids = experts(), fresh.integers(0, E, (4, 2))
    x = fresh.standard_normal((4, K)).astype(np.float32)
    want = gq.expert_linear(x, q, ids)
    for wrong in (E, -1, 1 << 40):
        other = ids.copy()
        other[2, 1] = wrong
        for options in ({}, {"check": True}, {"out": want.copy()}):
            with pytest.raises(gq.GGMLQError, match=rf"ids\[2, 1\] is {wrong}; q has {E} experts"):
                gq.expert_linear(x, q, other, **options)
        y = gq.expert_linear(x, q, other, check=False)
        assert np.array_equal(np.isnan(y).all(axis=-1), other != ids)
        assert np.array_equal(y[other == ids], want[other == ids])
    assert len(short) == 3, "with check=False"
    for wrong in (
        {"kernel": "cpu:nothing"}, {"kernel": []}, {"arithmetic": "q9"}, {"dtype": np.int32},
        {"out": np.empty((4, 2), np.float32)}, {"out": [[0]]},
    ):  # fmt: skip
        with pytest.raises(gq.GGMLQError):
            gq.expert_linear(x, q, ids, **wrong)
    with pytest.raises(gq.GGMLQError):
        gq.expert_linear(x, q, ids.astype(bool))
    with pytest.raises(gq.GGMLQError):
        gq.expert_linear(np.ma.masked_array(x), q, ids)
    locked = want.copy()
    locked.flags.writeable = False
    with pytest.raises(gq.GGMLQError, match="read-only"):
        gq.expert_linear(x, q, ids, out=locked)


def test_all_ids_wrong_and_none_at_all(fresh):
    """Nothing is multiplied, and nothing read of any expert."""
    q, x = experts(), fresh.standard_normal((2, K)).astype(np.float32)
    for _ in range(2):
        assert np.isnan(gq.expert_linear(x, q, np.full((2, 3), E), check=False)).all()
    none = gq.quantize(np.zeros((0, N, K), np.float32), "q4_K")
    assert np.isnan(gq.expert_linear(x, none, np.zeros((2, 3), int), check=False)).all()


def test_bytes_that_change_are_followed(fresh):
    q, ids = experts("q8_0").copy(), fresh.integers(0, E, (3, 2))
    x = fresh.standard_normal((3, K)).astype(np.float32)
    before = [gq.expert_linear(x, q, ids) for _ in range(2)][1]
    q.blocks["d"] *= 2
    assert np.array_equal(gq.expert_linear(x, q, ids), 2 * before)


def test_an_expert_seen_later_is_made_without_a_warning(fresh):
    """Its panels are made by the short way: scales that are no numbers are values like others."""
    q = experts("q4_K").copy()
    q.blocks["d"][4], q.blocks["dmin"][4] = np.inf, np.nan
    q.raw.flags.writeable = False
    x = fresh.standard_normal((1, K)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gq.expert_linear(x, q, np.array([[0]]))
        assert not np.isfinite(gq.expert_linear(x, q, np.array([[4]]))).any()


def test_infinities_of_a_product_that_comes_again_are_no_warnings(short):
    q, x = experts("q8_0"), np.full((2, K), 3e38, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            gq.expert_linear(x, q, np.array([[0], [1]]), kernel="cpu:each")
    assert len(short) == 1


def test_what_is_kept_is_given_back(fresh, short):
    q, ids = experts(), np.array([[1, 3]])
    x = fresh.standard_normal((1, K)).astype(np.float32)
    want = gq.expert_linear(x, q, ids)
    assert isinstance(q.recording(r3_panels.variant), multiply.Products)
    made = weakref.ref(q[1].prepared_copy(panels))
    gq.expert_linear(x, q, ids)
    q[1].drop_prepared()  # one expert's
    gc.collect()
    assert made() is None
    assert np.array_equal(gq.expert_linear(x, q, ids), want)
    assert len(short) == 2
    q.drop_prepared()
    assert q.recording(r3_panels.variant) is None
    assert np.array_equal(gq.expert_linear(x, q, ids), want)
    assert len(short) == 2


def test_many_threads_at_once(fresh, short):
    q, t = experts("q6_K", 300), 6
    xs = fresh.standard_normal((8, t, K)).astype(np.float32)
    uses, wrong = fresh.integers(0, E, (8, t, 3)), []
    want = [gq.expert_linear(x, again(q), ids) for x, ids in zip(xs, uses, strict=True)]

    def work(i):
        for _ in range(100):
            if not np.array_equal(gq.expert_linear(xs[i], q, uses[i]), want[i]):
                wrong.append(i)

    at_once(work, len(xs))
    assert not wrong
    assert len(short) >= 700


def test_the_table_of_the_kernels(fresh):
    """Uses by expert, each with the address of its row and of its result; those of no expert are left out."""
    q, t, u = experts(n=20), 30, 2
    products = multiply.Products(q, r3_panels.variant(q))
    ids = fresh.integers(-1, E + 1, (t, u))
    out, records = np.zeros((t, u, 20), np.float32), 1 << 20
    tables, given = products._tables(ids, t, records, out, 3)
    alone(products._sort, given, 1)
    found, most = tables[: multiply.COUNTS]

    def read(address, count):
        first = (address - given.counts) // multiply.WORD
        return tables[first : first + count]

    flat = ids.reshape(-1)
    counts = np.bincount(flat[(flat >= 0) & (flat < E)], minlength=E)
    assert most == counts.max()
    groups = read(given.groups, 3 * found).reshape(-1, 3)
    starts = np.cumsum(counts) - counts
    assert np.array_equal(groups, [(e, starts[e], counts[e]) for e in range(E) if counts[e]])
    order = np.concatenate([np.flatnonzero(flat == e) for e in range(E)])
    assert np.array_equal(read(given.rows, len(order)), records + order // u * given.row_bytes)
    assert np.array_equal(read(given.outs, len(order)), out.ctypes.data + order * 20 * 4)
    assert np.array_equal(np.isnan(out).all(axis=-1), (ids < 0) | (ids >= E))
    cuts = read(given.cuts, 4)
    assert (cuts[0], cuts[-1]) == (0, 2 * found)
