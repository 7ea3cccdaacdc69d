"""The report of a diagnosis: places, formulas, what was never written, and what cannot be judged."""

from __future__ import annotations

import mutation
import numpy as np
import pytest
import wrong_kernels
from test_diagnose import SHAPE, some

import ggmlq as gq


@pytest.mark.slow
def test_sums_of_codes_are_a_fault_only_against_a_claim():
    y, x, q, asked = mutation.case("sum-of-codes-vs-floats", "q5_1", SHAPE, "cpu", 0, 5, 0)
    assert gq.diagnose(y, x, q).ok
    found = gq.diagnose(y, x, q, **asked)
    assert not found.ok
    assert "half(Σx)" in found.text


@pytest.mark.parametrize("name", ["q4_K", "q6_K"])
def test_a_first_block_that_is_missing_is_no_neighbours_scale(name):
    """Scales of neighbouring blocks of 256 activations are nearly alike, so that mistake comes near."""
    for _ in range(3):
        x, q = some(name, m=9, n=16, k=512)
        w = np.asarray(q).copy()
        w[:, :256] = 0
        found = gq.diagnose(x @ w.T, x, q)
        assert (found.fault, found.where["K-blocks"]) == ("unknown", {"missing": [(0, 256)]})


def test_periods_of_columns():
    x, q = some(n=32)
    y = x @ q.T
    y[:, 3::8] += 1
    found = gq.diagnose(y, x, q)
    assert found.where["column period"] == 8
    assert "every 8 columns" in found.text


def test_two_faults_that_fit_alike_are_both_named_and_an_input_is_proposed():
    x, q = some(m=1, n=4, k=256)
    found = gq.diagnose(np.zeros((1, 4), np.float32), x, q)
    assert found.alternatives
    assert found.confidence <= 0.5
    assert "--make-input" in found.text
    assert found.telling_input.shape == (33, 256)
    assert found.telling_input.dtype == np.float32


def test_formulas_are_those_of_the_format():
    x, q = some("q4_K", m=9, n=24, k=512)
    codes, scale, offset = q.format.unpack(q.blocks)
    exchanged = codes.reshape(24, -1, 2, 32)[:, :, ::-1].reshape(24, -1, 8, 32)
    w = exchanged * scale.reshape(24, -1, 8)[..., None] - offset.reshape(24, -1, 8)[..., None]
    found = gq.diagnose(x @ w.reshape(24, 512).T, x, q)
    assert found.fault == "nibbles-exchanged"
    assert "Right: q[j] = qs[j] & 15, q[j+32] = qs[j] >> 4" in found.text
    assert "Wrong: q[j+32] = qs[j] & 15, q[j] = qs[j] >> 4" in found.text
    assert "interleaved" not in found.text
    assert "j+16" not in found.text


def test_tokens_exchanged_are_rows_of_y():
    x, q = some(m=12)
    y = x @ q.T
    y[[5, 9]] = y[[9, 5]]
    found = gq.diagnose(y, x, q)
    assert found.fault == "tokens-permuted"
    assert "Rows of y, that is tokens" in found.text
    assert "columns of y" not in found.text
    assert "row 5 holds 9" in found.text


def test_a_result_far_off_names_no_nearest_kernel():
    x, q = some()
    found = gq.diagnose(x @ np.where(np.arange(256) % 7, np.asarray(q), 2).T, x, q)
    assert found.fault == "unknown"
    assert "NMSE" not in found.text
    assert found.text.count("unknown") == 1


@pytest.mark.parametrize("rest", ["correct", "nibble-order", "unknown"])
def test_elements_that_were_never_written_are_judged_apart(rest):
    x, q = some(m=9, n=24)
    y = x @ q.T
    if rest == "nibble-order":
        y = wrong_kernels.run("q4_0", q.raw, x, fault=rest)
    if rest == "unknown":
        y = x @ np.where(np.arange(256) % 7, np.asarray(q), 2).T
    y[:, 21:] = np.nan
    found = gq.diagnose(y, x, q, unwritten=np.isnan(y))
    assert found.fault == ("nibble-order" if rest == "nibble-order" else "unwritten")
    assert "27 of 216 elements of y were never written: the last 3 of 24 columns" in found.text
    assert found.figures["elements not finite"] == 0
    if rest == "correct":
        assert gq.diagnose(y, x, q).fault == "n-tail"  # whoever cannot know
    with pytest.raises(gq.errors.ShapeError, match="unwritten is bool"):
        gq.diagnose(y, x, q, unwritten=np.isnan(y)[:3])


def test_what_the_right_arithmetic_overflows_in_is_no_overflow():
    x, q = some("q4_0", m=9, n=24, k=512)
    x[3] *= np.float32(2.0**25)
    moved = np.asarray(q).reshape(24, -1, 2, 16)[:, :, ::-1].reshape(24, 512)
    with np.errstate(over="ignore"):
        right = gq.reference.linear(x, q, "ggml-cpu")
        wrong = gq.reference.linear(x, gq.quantize(moved, "q4_0"), "ggml-cpu").astype(np.float32)
    assert not np.isfinite(right).all()
    assert (np.isfinite(wrong) == np.isfinite(right)).all()
    assert gq.diagnose(wrong, x, q).fault != "scale-f16-overflow"


# --- bad input ------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_an_error():
    x, q = some()
    y = x @ q.T
    with pytest.raises(gq.errors.ShapeError, match="last axis of both is K"):
        gq.diagnose(y, x[:, :32], q)
    with pytest.raises(gq.errors.DTypeError):
        gq.diagnose(y.astype(int), x, q)
    with pytest.raises(gq.errors.DTypeError):
        gq.diagnose(y, x, np.asarray(q))
    with pytest.raises(gq.errors.UnsupportedError, match="no such arithmetic"):
        gq.diagnose(y, x, q, arithmetic="f8")
    x[2, 5] = np.nan
    with pytest.raises(gq.errors.NonFiniteError, match=r"x\[2, 5\] is nan"):
        gq.diagnose(y, x, q)
