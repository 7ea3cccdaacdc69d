"""One identity for all: block formats taken apart, and scaled arrays with zero points, in the oracle."""

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.reference.multiply import Planar, product

OFFSETS = ["q4_0", "q5_0", "q8_0", "q4_1", "q5_1", "q2_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "mxfp4"]


@pytest.mark.parametrize("name", OFFSETS)
def test_a_block_format_is_planar(name, fresh):
    """Σ x·w through scales, codes, offsets and sums is the product of the decoded weights."""
    fmt = gq.formats[name]
    q = gq.quantize(fresh.standard_normal((5, 512), np.float32), fmt)
    x = fresh.standard_normal((3, 512))
    codes, scale, offset = (None if part is None else part.reshape(5, -1) for part in fmt.unpack(q.blocks))
    scaled = codes * np.repeat(scale.astype(np.float64), fmt.group, axis=1)
    sums = x.reshape(3, -1, fmt.group).sum(axis=-1)
    wide = None if offset is None else offset.astype(np.float64)
    y = product(Planar(x, None, sums), Planar(scaled, wide, None))
    assert np.allclose(y, gq.reference.linear(x, q), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("name", "zero"), [("q4_0", 8), ("q5_0", 16)])
def test_the_constant_of_a_format_is_a_zero_point(name, zero, fresh):
    """q4_0's -8·s: its stored codes with a zero point of 8, as a scaled array."""
    fmt = gq.formats[name]
    q = gq.quantize(fresh.standard_normal((4, 256), np.float32), fmt)
    codes, scale, _ = (None if part is None else part.reshape(4, -1) for part in fmt.unpack(q.blocks))
    stored = (codes.astype(np.int16) + zero).astype(np.uint8)
    w = gq.ScaledArray(stored, scale, "uint8", (1, 32), zeros=np.full(scale.shape, zero))
    assert np.array_equal(np.asarray(w), np.asarray(q))
    x = gq.quantize_scaled(fresh.standard_normal((3, 256), np.float32), "int8", (1, 32))
    want = gq.reference.linear(x.codes * np.repeat(x.scales.astype(float), 32, axis=1), q)
    assert np.allclose(gq.reference.scaled_linear(x, w), want, rtol=1e-12, atol=1e-12)
    assert np.allclose(x @ w.T, want, rtol=1e-5, atol=1e-5)


def test_both_have_zero_points(fresh):
    """All four terms, with groups of unlike lengths and a last one that is short."""
    x, w = (
        gq.quantize_scaled(fresh.random((rows, 300)) - 0.2, code, (1, c), zeros=True, ragged="pad")
        for rows, code, c in ((3, "uint8", 32), (6, "int8_full", 64))
    )
    want = x.dequantize(np.float64) @ w.dequantize(np.float64).T
    y = gq.reference.scaled_linear(x, w)
    assert np.allclose(y, want, rtol=1e-6, atol=1e-6)
    assert np.allclose(x @ w.T, y, rtol=1e-5, atol=1e-6)
