"""nmse, and the comparisons that the other tests stand on: they must see what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows


def test_nmse():
    reference = np.array([[3.0, 4.0], [0.0, 1.0]])
    y = reference + np.array([[0.5, 0], [0, 0]])
    assert gq.nmse(y, reference) == pytest.approx(0.25 / 26)
    assert gq.nmse(y, reference, axis=-1).tolist() == [0.01, 0]
    assert gq.nmse(y, reference, axis=(0, 1)) == gq.nmse(y, reference)
    assert isinstance(gq.nmse(y, reference), float)


def test_nmse_at_the_edges():
    assert gq.nmse(np.zeros(3), np.zeros(3)) == 0
    assert gq.nmse(np.ones(3), np.zeros(3)) == np.inf
    assert gq.nmse([], []) == 0
    assert gq.nmse([1e-200], [3e-200]) == pytest.approx(4 / 9)
    assert gq.nmse([1e200], [3e200]) == pytest.approx(4 / 9)
    assert gq.nmse([1 + 2.0**-30], [1.0]) == pytest.approx(2.0**-60, rel=1e-6)


def test_nmse_is_nan_where_either_is():
    for bad in (np.nan, np.inf):
        assert np.isnan(gq.nmse([1, bad], [1, bad]))
    assert np.isnan(gq.nmse([1.0, np.nan], [1.0, 2.0]))
    assert np.isnan(gq.nmse([1.0, 2.0], [1.0, np.nan]))
    assert np.isnan(gq.nmse([[1.0, np.nan], [1, 1]], np.ones((2, 2)), axis=1)).tolist() == [True, False]


def test_nmse_takes_quantized_arrays():
    q = gq.quantize(rows("normal", 2, 32), "q8_0")
    assert gq.nmse(q, q.dequantize()) == 0


@pytest.mark.parametrize("wrong", ["nan", "zero row", "one element", "scaled"])
def test_a_product_that_is_wrong(wrong):
    x, q = rows("normal", 6, 256), gq.quantize(rows("normal", 8, 256, seed=1), "q8_0")
    y = x @ q.T
    assert_right(y, x, q)
    if wrong == "nan":
        y[2, 3] = np.nan
    elif wrong == "zero row":
        y[:, 3] = 0
    elif wrong == "one element":
        y[2, 3] *= 1.001
    else:
        y[:, 3] *= 1 + 2e-5
    with pytest.raises(AssertionError, match="row 3 is off"):
        assert_right(y, x, q)


def test_a_small_row_beside_a_large_one_counts():
    w = rows("normal", 2, 64)
    w[0] *= 1e6
    x, q = rows("normal", 3, 64, seed=1), gq.QuantArray.from_bytes(w, "f32", (2, 64))
    y = x @ q.T
    y[:, 1] = 0
    assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-10
    with pytest.raises(AssertionError, match="row 1"):
        assert_right(y, x, q)
