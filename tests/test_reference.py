"""The reference in every arithmetic: against llama.cpp's own products, and against itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from block_cases import weights as random_weights
from right import products

import ggmlq as gq
from ggmlq.arrays.rows import MODEST, rows
from ggmlq.formats import FORMATS
from ggmlq.reference import Rule, activations, linear, multiply, row_errors, rule, weights
from ggmlq.reference.rules import D4, MMVQ, NOT_ON_CUDA, ON_MMQ, ON_MMVQ, ONLY_ACTIVATIONS

GOLDEN = Path(__file__).parent / "golden"

BLOCKS = [fmt.name for fmt in FORMATS.values() if fmt.block_size > 1]
ON_CPU = [name for name in BLOCKS if name not in ONLY_ACTIVATIONS]
ON_CUDA = [name for name in ON_CPU if name not in NOT_ON_CUDA]
CLOSE = {"ggml-cpu": 1e-11, "ggml-mmvq": 1e-9, "ggml-mmq": 1e-6}  # what the contract asks for
REACHED = 2e-12  # what is reached everywhere: rounding noise of float32 sums


def golden(name, backend):
    found = list(products(GOLDEN, name, backend))
    assert found, f"no products of {name} on {backend}"
    return found


# --- llama.cpp's own products ---------------------------------------------------------------


@pytest.mark.parametrize("name", [*ON_CPU, "f16", "bf16"])
def test_llama_cpp_on_a_cpu(name):
    assert {len(p.x) for p in golden(name, "cpu")} >= {1, 2, 5, 8, 9, 17, 33, 130}
    for p in golden(name, "cpu"):
        error = row_errors(p.y, linear(p.x, p.q, p.arithmetic), p.x, p.q)
        assert not (error > min(REACHED, CLOSE[p.arithmetic])).any(), f"M={len(p.x)}: {error}"


@pytest.mark.parametrize("name", ON_CUDA)
def test_llama_cpp_on_cuda(name):
    assert {len(p.x) for p in golden(name, "cuda")} >= {1, 2, 5, 8, 9, 17, 33, 130}
    for p in golden(name, "cuda"):
        if not rule(name, p.arithmetic).bounded:
            continue
        error = row_errors(p.y, linear(p.x, p.q, p.arithmetic), p.x, p.q)
        assert not (error > min(REACHED, CLOSE[p.arithmetic])).any(), f"M={len(p.x)}: {error}"


def test_half_products_overflow_where_llama_cpp_overflows():
    """The row of 1e4 noise: d4·d8 or m·s beyond the largest half."""
    for name in ("q4_1", "q5_1"):
        for p in golden(name, "cuda"):
            if p.rows == "uniform" and len(p.x) <= 8:
                finite = np.isfinite(linear(p.x, p.q, p.arithmetic))
                assert np.array_equal(finite, np.isfinite(p.y))
                assert not finite.all()


RECORDS = [(name, "ggml-mmvq") for name in ON_MMVQ]
RECORDS += [(name, "ggml-mmq") for name, how in ON_MMQ.items() if how.bounded]


@pytest.mark.parametrize(("name", "arithmetic"), RECORDS)
def test_no_record_is_idle(name, arithmetic):
    """Without what it says, llama.cpp's product is missed by far more than rounding noise."""
    plain = Rule(MMVQ if arithmetic == "ggml-mmvq" else D4)
    runs = [p for p in golden(name, "cuda") if p.arithmetic == arithmetic]
    assert max(row_errors(p.y, linear(p.x, p.q, plain), p.x, p.q).max() for p in runs) > 100 * REACHED


def test_exchanged_programs_are_told_apart():
    for p in golden("q4_0", "cuda"):
        other = "ggml-mmq" if p.arithmetic == "ggml-mmvq" else "ggml-mmvq"
        assert row_errors(p.y, linear(p.x, p.q, other), p.x, p.q).max() > 1e-6


# --- activations ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uniform", "edges"])
@pytest.mark.parametrize(("weight", "stored"), [("q4_0", "q8_0"), ("q4_1", "q8_1"), ("q4_K", "q8_K")])
def test_ggml_ref_makes_the_codes_of_ggml(weight, stored, kind, golden):
    x = golden("inputs")[kind]
    blocks = golden(stored)[f"{kind}/blocks"].view(FORMATS[stored].dtype)
    a = activations(x, weight, "ggml-ref")
    assert np.array_equal(a.codes, blocks["qs"].reshape(x.shape))
    assert np.array_equal(a.scale, blocks["d"].astype(np.float64))
    if stored == "q8_1":
        assert np.array_equal(a.sums, blocks["s"].astype(np.float64))


@pytest.mark.parametrize("arithmetic", ["q8", "ggml-cpu", "ggml-mmvq", "ggml-mmq"])
@pytest.mark.parametrize("kind", MODEST)
def test_codes_differ_from_ggml_ref_on_ties_only(kind, arithmetic):
    x = rows(kind, 50, 512, seed=1)
    one, other = (activations(x, "q8_0", name) for name in ("ggml-ref", arithmetic))
    differ = one.codes != other.codes
    assert (differ <= (one.ties | other.ties)).all()
    assert (np.abs(one.codes.astype(int) - other.codes) <= 1).all()
    assert np.allclose(one.scale, other.scale, rtol=2.0**-11, atol=2.0**-25)


def test_what_a_program_keeps_of_a_run():
    x = rows("normal", 3, 512, seed=2)
    runs = x.reshape(3, 16, 32)
    for arithmetic, sums in (("ggml-mmvq", runs.sum(axis=-1)), ("ggml-mmq", runs.sum(axis=-1))):
        a = activations(x, "q4_1", arithmetic)
        assert np.allclose(a.sums, sums, atol=2e-2)
        assert np.array_equal(a.sums, a.sums.astype(np.float16))
        assert np.array_equal(a.scale, a.scale.astype(np.float16))
    assert activations(x, "q8_0", "ggml-mmq").sums is None  # D4: float scales, no sums
    a = activations(x, "q2_K", "ggml-mmq")  # D2S6: scales of 64, sums of 16, six of eight kept
    assert (a.run, a.scale.shape, a.sums.shape) == (64, (3, 8), (3, 32))
    own = (a.codes.reshape(3, 8, 64) * a.scale[..., None]).reshape(3, 32, 16).sum(axis=-1)
    assert np.allclose(a.sums[:, 6:8], own[:, 6:8], rtol=1e-15)
    assert not (a.sums[:, :6] == own[:, :6]).any()


@pytest.mark.parametrize("arithmetic", ["q8", "ggml-ref", "ggml-cpu", "ggml-mmvq", "ggml-mmq"])
def test_a_run_of_zeros(arithmetic):
    x = np.zeros((2, 512), np.float32)
    for name in ("q4_0", "q4_1", "q2_K", "q8_0"):
        a = activations(x, name, arithmetic)
        assert not a.codes.any()
        assert not a.scale.any()
        assert not a.ties.any()
        assert not linear(x, random_weights(name, 3, 512), arithmetic).any()


# --- quantized activations ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "iq2_xs", "q2_K", "mxfp4", "f16"])
@pytest.mark.parametrize("stored", ["q8_0", "q8_1", "q8_K"])
def test_activations_already_quantized(stored, name):
    x, q = rows("normal", 5, 512, seed=3), random_weights(name, 7, 512)
    xq = gq.quantize(x, stored)
    floats = linear(xq.dequantize(), q)
    for arithmetic in ("exact", "f32", "q8", "ggml-cpu", "ggml-mmvq", "ggml-mmq"):
        if name == "f16" and arithmetic == "q8":
            continue
        y = linear(xq, q, arithmetic)
        assert y.shape == (5, 7)
        assert not (row_errors(y, floats, x, q) > 2e-3).any()
    assert np.array_equal(linear(xq[2], q, "exact"), linear(xq[2:3], q, "exact")[0])


def test_the_right_quantized_activations_change_nothing():
    x = rows("normal", 5, 512, seed=3)
    for name, stored in (("q4_0", "q8_0"), ("q5_1", "q8_1"), ("q5_K", "q8_K")):
        q = random_weights(name, 7, 512)
        assert np.array_equal(linear(gq.quantize(x, stored), q, "ggml-ref"), linear(x, q, "ggml-ref"))


def test_the_sum_of_a_q8_1_block_is_believed():
    q, x = random_weights("q4_1", 3, 64), gq.quantize(rows("normal", 2, 64), "q8_1").copy()
    before = linear(x, q, "ggml-cpu")
    x.blocks["s"] = 0
    offset = weights(q, "ggml-cpu").offset
    sums = gq.quantize(rows("normal", 2, 64), "q8_1").blocks["s"].astype(np.float64)
    assert np.allclose(linear(x, q, "ggml-cpu") - before, sums @ offset.T)


# --- one identity ---------------------------------------------------------------------------


@pytest.mark.parametrize("arithmetic", gq.reference.ARITHMETICS)
@pytest.mark.parametrize("name", BLOCKS)
def test_every_arithmetic_is_near_exact(name, arithmetic):
    q, x = random_weights(name, 9, 512, seed=4), rows("normal", 6, 512, seed=5)
    try:
        y = linear(x, q, arithmetic)
    except gq.GGMLQError as error:
        assert "llama.cpp does not multiply" in str(error)  # noqa: PT017
        assert name in (*ONLY_ACTIVATIONS, *NOT_ON_CUDA)
        return
    with np.errstate(over="ignore"):
        fit = np.isfinite(q.dequantize(np.float16)).all()
    assert not (row_errors(y, linear(x, q), x, q) > 5e-4).any() or not fit


@pytest.mark.parametrize("columns", [96, 128, 416])
def test_lanes_of_halves_by_hand(columns):
    """As ggml's source has it, one number after the other: exact sums, then one rounding to half."""
    q = gq.quantize(rows("normal", 2, columns, seed=8), "f16")
    x, w = rows("normal", 2, columns, seed=9).astype(np.float16), np.asarray(q).astype(np.float16)
    want = np.zeros((2, 2))
    for m, n in np.ndindex(2, 2):
        lanes, whole = [Fraction(0)] * 128, columns // 128 * 128
        for i in range(whole):
            exact = lanes[i % 128] + Fraction(float(x[m, i])) * Fraction(float(w[n, i]))
            lanes[i % 128] = Fraction(float(np.float16(float(exact))))
        for width in (64, 32, 16, 8, 4, 2, 1):
            halves = [np.float16(float(lanes[i] + lanes[i + width])) for i in range(width)]
            lanes = [Fraction(float(half)) for half in halves]
        products = (Fraction(float(x[m, i])) * Fraction(float(w[n, i])) for i in range(whole, columns))
        want[m, n] = float(lanes[0] + sum(products))
    np.testing.assert_allclose(linear(x, q, "ggml-cpu-fp16"), want, rtol=1e-15, atol=0)
    assert (np.abs(linear(x, q, "ggml-cpu") - want) > 1e-5).any() == (columns > 96)


def test_other_types_have_no_lanes_of_halves():
    for name in ("q4_0", "f32", "bf16"):
        q, x = gq.quantize(rows("normal", 5, 256), name), rows("normal", 3, 256)
        assert np.array_equal(linear(x, q, "ggml-cpu-fp16"), linear(x, q, "ggml-cpu"))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "iq1_m", "nvfp4"])
def test_integer_products_by_hand(name):
    """Element by element in Python integers and float64."""
    q, x = random_weights(name, 3, 256, seed=6), rows("normal", 2, 256, seed=7)
    a, parts = activations(x, name, "q8"), q.format.unpack(q.blocks)
    group, want = q.format.group, np.zeros((2, 3))
    codes, scale = parts.codes.reshape(3, 256), parts.scale.reshape(3, -1)
    offset = np.zeros_like(scale) if parts.offset is None else parts.offset.reshape(scale.shape)
    for m in range(2):
        for n in range(3):
            for start in range(0, 256, min(group, 32)):
                at, g = range(start, start + min(group, 32)), start // group
                dot = sum(int(a.codes[m, i]) * int(codes[n, i]) for i in at)
                total = sum(int(a.codes[m, i]) for i in at)
                d = float(a.scale[m, start // 32])
                want[m, n] += d * (float(scale[n, g]) * dot - float(offset[n, g]) * total)
    assert np.allclose(linear(x, q, "q8"), want, rtol=1e-13, atol=1e-13 * np.abs(want).max())


def test_operands_multiply_to_the_product():
    q, x = random_weights("q4_0", 5, 128), rows("normal", 3, 128)
    for arithmetic in gq.reference.ARITHMETICS:
        how = rule(q.format, arithmetic)
        y = multiply(weights(q, arithmetic), activations(x, q.format, arithmetic), how)
        assert np.array_equal(y, linear(x, q, arithmetic))
    assert weights(q, "ggml-mmvq").codes.min() >= 0  # as stored
    assert weights(q, "ggml-mmq").codes.min() < 0


def test_a_rule_of_ones_own():
    """8 taken off through half(Σ x), but with the codes of the CPU."""
    q, x = random_weights("q4_0", 5, 128), rows("normal", 3, 128)
    how = replace(rule("q4_0", "ggml-mmvq"), quantizer=replace(MMVQ, inverse="127/amax", rounding="even"))
    y = linear(x, q, how)
    assert row_errors(y, linear(x, q, "ggml-mmvq"), x, q).max() < 1e-6
    assert gq.reference.bound(x, q, how).shape == y.shape


@pytest.mark.parametrize("arithmetic", ["exact", "f16", "q8", "ggml-cpu", "ggml-mmvq"])
def test_slabs_and_shapes(arithmetic, monkeypatch):
    q, x = random_weights("q4_1", 20, 128), rows("normal", 12, 128)
    want = linear(x, q, arithmetic)
    monkeypatch.setattr(sys.modules["ggmlq.reference.linear"], "SLAB", 400)
    assert np.allclose(linear(x, q, arithmetic), want, rtol=1e-13, atol=1e-13)
    assert linear(x.reshape(2, 3, 2, 128), q, arithmetic).shape == (2, 3, 2, 20)
    assert linear(x[0], q, arithmetic).shape == (20,)
    assert linear(x[:0], q, arithmetic).shape == (0, 20)
    assert linear(gq.quantize(x, "q8_0")[:0], q, arithmetic).shape == (0, 20)


@pytest.mark.parametrize("arithmetic", gq.reference.ARITHMETICS)
def test_not_a_number_spoils_its_row_only(arithmetic):
    x, q = rows("normal", 4, 512), random_weights("q4_0", 3, 512)
    x[1, 7], x[3, 9] = np.nan, np.inf
    finite = np.isfinite(linear(x, q, arithmetic))
    assert finite.all(axis=1).tolist() == finite.any(axis=1).tolist() == [True, False, True, False]


# --- what it refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arithmetic", "name", "words"),
    [
        ("ggml-gpu", "q4_0", "no such arithmetic.*'exact'.*'ggml-mmq'"),
        ("ggml-mmq", "tq1_0", "does not multiply weights of this type there"),
        ("ggml-cpu", "q8_K", "does not multiply weights of this type there"),
        ("q8", "f16", "no codes to multiply; ask for 'exact'"),
        ("ggml-cpu", "i32", "no codes to multiply"),
    ],
)
def test_refused_arithmetics(arithmetic, name, words):
    q = random_weights(name, 2, 256)
    with pytest.raises(gq.errors.UnsupportedError, match=words):
        linear(rows("normal", 2, 256), q, arithmetic)


def test_refused_activations():
    q = random_weights("q4_0", 2, 256)
    with pytest.raises(gq.errors.UnsupportedError, match="q8_0, q8_1 or q8_K"):
        linear(gq.quantize(rows("normal", 2, 256), "q4_0"), q)
    with pytest.raises(gq.errors.ShapeError, match=r"pass x as \[\.\.\., 256\]"):
        linear(gq.quantize(rows("normal", 2, 512), "q8_0"), q)
    with pytest.raises(gq.errors.DTypeError):
        linear(gq.quantize(rows("normal", 2, 256), "q8_0"), np.ones((2, 256)))


def test_agreement_is_judged_row_by_row():
    q, x = gq.quantize(np.eye(3, 32, dtype=np.float32), "f32"), np.ones((2, 32), np.float32)
    y = linear(x, q)
    assert row_errors(y, y, x, q).tolist() == [0, 0, 0]
    off = y + np.array([0, 1e-3, 0])
    assert np.allclose(row_errors(off, y, x, q), [0, 1e-6, 0])
    off[0, 2] = np.nan
    assert row_errors(off, y, x, q)[2] == np.inf
    assert np.allclose(row_errors(off, off, x, q), 0)
