"""What products on the CPU lose, beside llama.cpp; and numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import weights
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.formats import FORMATS, BlockFormat

BLOCKS = [
    name for name, fmt in FORMATS.items() if isinstance(fmt, BlockFormat) and name not in ("q8_1", "q8_K")
]


@pytest.mark.parametrize("name", BLOCKS)
def test_no_less_accurate_than_llama_cpp(name):
    """Types of 32 have the same codes and a scale that is not rounded to half; others run 32, not 256."""
    q, x = weights(name, 32, 1024), rows("normal", 64, 1024, seed=1)
    exact = gq.reference.linear(x, q)
    ours = gq.nmse(x @ q.T, exact, axis=0)
    theirs = gq.nmse(gq.reference.linear(x, q, "ggml-cpu"), exact, axis=0)
    assert np.median(ours / theirs) <= 1.02  # of one row, chance decides more than that


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "iq2_xs"])
@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-36, 1e30])
def test_activations_of_any_kind(name, m, value):
    q, x = weights(name, 17, 512), rows("normal", m, 512)
    x[0, 40:90:7] = value
    if np.isfinite(value) and value < 1:
        x[0] = value
    with np.errstate(all="ignore"):
        assert_right(x @ q.T, x, q)
    assert np.isfinite((x @ q.T)[1:]).all()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "iq4_xs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(name, value):
    q = weights(name, 17, 512).copy()
    q.blocks["d"][3, 0] = value
    q = gq.QuantArray.from_bytes(q.raw, name, q.shape)
    for m in (1, 9):
        x = rows("normal", m, 512)
        y = x @ q.T
        assert not np.isfinite(y[:, 3]).any()
        assert np.isfinite(np.delete(y, 3, axis=1)).all()


@pytest.mark.parametrize("kind", ["heavy_tails", "outliers", "small", "tiny", "zeros", "ties"])
def test_rows_of_every_kind(kind):
    q, x = weights("q4_0", 20, 256), rows(kind, 9, 256)
    assert_right(x @ q.T, x, q)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 64), (5, 0, 64), (3, 1, 32), (65, 17, 32)])
def test_edges(m, n, k):
    q, x = weights("q5_1", n, k), rows("normal", m, k)
    y = x @ q.T
    assert y.shape == (m, n)
    assert_right(y, x, q)


def test_rows_of_nothing():
    q = gq.QuantArray.from_bytes(b"", "q5_1", (16, 0))
    assert np.array_equal(np.ones((3, 0), np.float32) @ q.T, np.zeros((3, 16)))
