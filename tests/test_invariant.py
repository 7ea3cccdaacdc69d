"""invariant=True: a row's bits depend neither on rows beside it, nor on their number, nor on its place."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import weights

import ggmlq as gq
from ggmlq.base.threads import at_most
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.problems import ExpertLinear, Linear, ScaledLinear
from ggmlq.dispatch.tuned import Preference
from ggmlq.formats import FORMATS

MOST = 600
TYPES = [
    "q4_0", "q4_K", "q6_K", "q5_1", "iq3_s", "iq4_nl", "mxfp4", "tq1_0", "f16", "bf16", "f32", "i8", "f64",
]  # fmt: skip


def pieces(fresh, count=5):
    """Slices of rows: of one, of a few, of numbers at which kernels change, of any number."""
    edges = [1, 2, 3, 4, 5, 8, 9, 12, 13, 27, 28, 32, 33, 63, 64, 65, 127, 128, 129, 256, 300]
    sizes = [1, int(fresh.integers(1, MOST)), *fresh.choice(edges, count - 2, replace=False).tolist()]
    return [slice(at := int(fresh.integers(0, MOST - size + 1)), at + size) for size in sizes]


def same_bits(multiply, x, fresh, *beside):
    """All rows at once, and some of them: the same bits, on one thread too."""
    whole = multiply(x, *beside)
    for rows in pieces(fresh):
        for _ in range(2):  # recorded, then repeated
            part = multiply(x[rows].copy(), *(each[rows] for each in beside))
            assert np.array_equal(part, whole[rows]), rows
    some = fresh.permutation(MOST)[:40]
    with at_most(1):
        assert np.array_equal(multiply(x[some], *(each[some] for each in beside)), whole[some])
    return whole


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", TYPES)
def test_linear(name, fresh):
    k = FORMATS[name].block_size * int(fresh.integers(2, 5)) if FORMATS[name].block_size > 1 else 301
    q = weights(name, int(fresh.integers(1, 90)), k, seed=int(fresh.integers(1 << 30)))
    x = fresh.standard_normal((MOST, k), np.float32)
    y = same_bits(lambda rows: gq.linear(rows, q, invariant=True), x, fresh)
    assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-3
    back = fresh.standard_normal((MOST, len(q)), np.float32)
    y = same_bits(lambda rows: gq.linear(rows, q.T, invariant=True), back, fresh)
    assert gq.nmse(y, gq.reference.linear(back, q.T)) < 1e-10


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "iq3_s", "f16", "f32"])
@pytest.mark.parametrize("rung", gq.kernels("linear", device="cpu"), ids=lambda rung: rung.name)
def test_every_kernel_of_linear_that_says_so(rung, name, fresh):
    q = weights(name, 40, 512, seed=int(fresh.integers(1 << 30)))
    x = fresh.standard_normal((MOST, 512), np.float32)
    options = {"kernel": rung.name, "invariant": True}
    if rung.refuses(Linear(q.format, 8, 40, 512, device="cpu")) is not None or not rung.invariant:
        with pytest.raises(gq.GGMLQError, match="no kernel takes it"):
            gq.linear(x, q, **options)
    else:
        y = same_bits(lambda rows: gq.linear(rows, q, **options), x, fresh)
        assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-3


SCALED = [
    ("e4m3", (128, 128), None), ("e5m2", (1, None), ("e5m2", (1, None))), ("int8", (1, None), None),
    ("int8", (128, 128), ("int8", (1, 128))), ("uint8", (1, None), None), ("int16", (1, None), None),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("case", range(len(SCALED)))
@pytest.mark.parametrize(
    "rung", [None, *gq.kernels("scaled_linear", device="cpu")], ids=lambda rung: rung.name if rung else "auto"
)
def test_scaled_linear(rung, case, fresh):
    code, tile, how = SCALED[case]
    w = fresh.standard_normal((50, 384), np.float32)
    w = gq.quantize_scaled(w, code, tile, zeros=code == "uint8")
    x = fresh.standard_normal((MOST, 384), np.float32)
    options = {"activations": how, "invariant": True}
    if rung is not None:
        options["kernel"] = rung.name
        operand = gq.quantize_scaled(x[:8], *(how or (code, (1, 128))), zeros=code == "uint8")
        if not rung.invariant or rung.refuses(ScaledLinear.of(operand, w)) is not None:
            with pytest.raises(gq.GGMLQError, match=r"no kernel takes it|one must be a multiple"):
                gq.scaled_linear(x, w, **options)
            return
    y = same_bits(lambda rows: gq.scaled_linear(rows, w, **options), x, fresh)
    assert gq.nmse(y, gq.reference.scaled_linear(x, w)) < 1e-2


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "iq3_s", "f16", "f32", "e4m3", "int8"])
@pytest.mark.parametrize(
    "rung", [None, *gq.kernels("expert_linear", device="cpu")], ids=lambda rung: rung.name if rung else "auto"
)
def test_expert_linear(rung, name, fresh):
    e, n, k = 5, 40, 256
    if name in ("e4m3", "int8"):
        q = gq.quantize_scaled(fresh.standard_normal((e, n, k), np.float32), name, (1, 128))
    else:
        q = weights(name, e * n, k, seed=int(fresh.integers(1 << 30))).reshape(e, n, k)
    x = fresh.standard_normal((MOST, k), np.float32)
    ids = fresh.integers(0, e, (MOST, 2))
    ids[fresh.random(ids.shape) < 0.5] = 0  # one expert has many rows
    options = {"invariant": True}
    if rung is not None:
        options["kernel"] = rung.name
        operand = gq.quantize_scaled(x[:8], name, (1, 128)) if hasattr(q, "code") else x[:8]
        problem = ExpertLinear.of(operand, q, ids[:8])
        if not rung.invariant or rung.refuses(problem) is not None:
            with pytest.raises(gq.GGMLQError, match="no kernel takes it"):
                gq.expert_linear(x, q, ids, **options)
            return
    same_bits(lambda rows, used: gq.expert_linear(rows, q, used, **options), x, fresh, ids)


def test_more_arguments(fresh):
    """Bias, residual, weights and gates keep it so."""
    e, n, k = 3, 32, 256
    q = gq.quantize(fresh.standard_normal((e, n, k), np.float32), "q4_K")
    x, stream = fresh.standard_normal((MOST, k), np.float32), fresh.standard_normal((MOST, n), np.float32)
    bias = fresh.standard_normal(n, np.float32)
    same_bits(
        lambda rows, more: gq.linear(
            rows, q[0], bias=bias, residual=more, dtype=np.float16, invariant=True
        ), x, fresh, stream,
    )  # fmt: skip
    same_bits(lambda rows: gq.gated_linear(rows, q[0], q[1], activation="gelu", invariant=True), x, fresh)
    ids, share = fresh.integers(0, e, (MOST, 2)), fresh.random((MOST, 2), np.float32)
    same_bits(
        lambda rows, used, by, more: gq.expert_linear(
            rows, q, used, weights=by, residual=more, invariant=True
        ), x, fresh, ids, share, stream,
    )  # fmt: skip


def test_recordings_of_both_kinds_stay_apart(fresh):
    q = weights("q4_K", 40, 512, seed=int(fresh.integers(1 << 30)))
    x = fresh.standard_normal((64, 512), np.float32)
    usual, alone = gq.linear(x, q), gq.linear(x, q, invariant=True)
    for _ in range(3):
        assert np.array_equal(gq.linear(x, q), usual)
        assert np.array_equal(gq.linear(x, q, invariant=True), alone)
        assert np.array_equal(gq.linear(x[:1], q, invariant=True), alone[:1])


def test_times_that_are_measured_change_no_bits(fresh, monkeypatch):
    q = weights("q4_K", 40, 512, seed=int(fresh.integers(1 << 30)))
    x = fresh.standard_normal((9, 512), np.float32)
    problem = Linear(q.format, 9, 40, 512, device="cpu")
    usual, y = ladder.choose(problem, invariant=True), gq.linear(x, q, invariant=True)
    monkeypatch.setattr(tuned, "preference", lambda *_: Preference(("cpu:naive",), "it was timed"))
    ladder.forget_choices()
    try:
        assert ladder.choose(problem).name == "cpu:naive"
        assert ladder.choose(problem, invariant=True).name == usual.name
        q.drop_prepared()
        assert np.array_equal(gq.linear(x, q, invariant=True), y)
    finally:
        ladder.forget_choices()


def test_words(fresh):
    w = gq.quantize_scaled(np.ones((4, 256), np.float32), "e4m3", (1, 128))
    with pytest.raises(gq.GGMLQError, match=r"rows share scales; pass activations=\(code, \(1, columns\)\)"):
        gq.scaled_linear(np.ones((4, 256)), w, activations=("e4m3", (None, None)), invariant=True)
    q = gq.quantize(np.ones((4, 256), np.float32), "q8_0")
    with pytest.raises(gq.GGMLQError, match=r"cpu:blocked: bits of its rows depend on how many"):
        gq.linear(np.ones((4, 256)), q, kernel="cpu:blocked", invariant=True)


# --- dynamic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["e4m3", "int8"])
def test_weights_that_are_rewritten(code, fresh):
    """A product of codes that change between calls: as of new arrays, and nothing stays with them."""
    first, second = (
        gq.quantize_scaled(fresh.standard_normal((30, 256), np.float32), code, (1, 128)) for _ in "ab"
    )
    x = fresh.standard_normal((9, 256), np.float32)
    codes, scales = first.codes.copy(), first.scales.copy()
    w = gq.ScaledArray(codes, scales, code, (1, 128))
    frozen = gq.ScaledArray(codes, scales, code, (1, 128))
    for s in (first, second, first, second):
        codes[...], scales[...] = s.codes, s.scales
        y = gq.scaled_linear(x, w, dynamic=True)
        assert np.array_equal(y, gq.scaled_linear(x, s))
        assert np.array_equal(gq.scaled_linear(x, w, dynamic=True, residual=y), y + y)
        assert np.array_equal(gq.scaled_linear(x, w, dynamic=True, invariant=True)[0], gq.scaled_linear(
            x[:1], frozen, invariant=True)[0])  # fmt: skip
    assert not w.prepared_copies()
    assert not w.has_prepared
