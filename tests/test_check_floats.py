"""The judge on weights that are floats, as CUDA multiplies them: 10 bits of fraction, and sums in halves."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import reference
from ggmlq.check.judge import candidates, judge


def ten_bits(values, *, cut):
    """By the size of the last place that is kept, in float64."""
    _, exponent = np.frexp(values.astype(np.float64))
    place = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
    return (np.trunc if cut else np.rint)(values / place) * place


def product(fresh, m, n=40, k=96, scale=1.0, kind="f32"):
    x = (fresh.standard_normal((m, k)) * scale).astype(np.float32)
    return x, gq.quantize(fresh.standard_normal((n, k)).astype(np.float32), kind)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("name", ["tf32", "tf32-cut"])
def test_ten_bits_of_fraction(name, scale, fresh):
    x, q = product(fresh, 9, scale=scale)
    cut = name == "tf32-cut"
    x[0, :4] = 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-130, -(1 + 2.0**-10 + 2.0**-20)  # ties, and a tiny one
    wanted = ten_bits(x, cut=cut) @ ten_bits(q.dequantize(np.float32), cut=cut).T
    made = reference.linear(x, q, name)
    assert np.abs(made - wanted).max() <= 1e-14 * np.abs(x).max() * 96
    found = judge(made.astype(np.float32), x, q, candidates("CUDA0", 9))
    assert found.ok
    assert found.arithmetic == name


def test_what_is_no_number_stays_none(fresh):
    x, q = product(fresh, 3)
    x[0, 1], x[1, 2] = np.nan, np.inf
    made = reference.linear(x, q, "tf32")
    assert np.isnan(made[0]).all()
    assert np.isinf(made[1]).all()
    assert np.isfinite(made[2]).all()


def test_other_weights_are_not_judged_so(fresh):
    x, q = product(fresh, 33, kind="q4_0")
    found = judge(reference.linear(x, q, "tf32").astype(np.float32), x, q, candidates("CUDA0", 33))
    assert not found.arithmetic.startswith("tf32")


@pytest.mark.parametrize("m", [9, 64])
def test_sums_in_halves_overflow(m, fresh):
    """Where a sum may pass the largest half, infinity and no number are what halves make of it."""
    x, q = product(fresh, m, scale=3e3, kind="f16")
    exact = reference.linear(x, q, "ggml-mmq")
    with np.errstate(over="ignore"):
        y = exact.astype(np.float16).astype(np.float32)
    y[np.abs(exact) > 6e4] = np.inf
    y[0, 0] = np.nan if abs(exact[0, 0]) > 3e4 else y[0, 0]
    assert not np.isfinite(y).all()
    assert judge(y, x, q, ["ggml-mmq"]).ok
    small, q = product(fresh, m, kind="f16")
    y = reference.linear(small, q, "ggml-mmq").astype(np.float16).astype(np.float32)
    assert judge(y, small, q, ["ggml-mmq"]).ok
    y[m // 2, 3] = np.inf
    assert judge(y, small, q, ["ggml-mmq"]).out == 1


def test_sums_in_halves_that_are_tiny(fresh):
    """Steps of the smallest half apart."""
    x, q = product(fresh, 9, scale=1e-7, kind="f16")
    y = reference.linear(x, q, "ggml-mmq").astype(np.float16).astype(np.float32)
    assert judge(y, x, q, ["ggml-mmq"]).ok
