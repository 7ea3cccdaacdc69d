"""Stores, strides, factors and moves of columns, each beside an arithmetic that hides it."""

from __future__ import annotations

import numpy as np
import pytest
import wrong_kernels
from test_diagnose import some

import ggmlq as gq


def outlying(name, m=33, n=40, k=768, seed=1001):
    """Activations with columns of outliers: another rounding of them costs much."""
    x, q = some(name, m, n, k, seed)
    x[:, np.random.default_rng(seed).integers(0, k, k // 100)] *= 40
    return x, q


@pytest.mark.parametrize("claim", [None, "f32"])
@pytest.mark.parametrize("scale", [1, 1e-4])
@pytest.mark.parametrize("m", [1, 9])
def test_a_right_result_cast_to_half_and_back_is_right(m, scale, claim):
    x, q = some(m=m)
    y = (np.float32(scale) * x @ q.T).astype(np.float16)
    found = gq.diagnose(y.astype(np.float32), np.float32(scale) * x, q, arithmetic=claim)
    assert found.ok, found.text
    assert "stored as half" in found.text
    assert gq.diagnose(y, np.float32(scale) * x, q).ok


def test_sums_kept_in_half_are_still_a_fault():
    for m in (1, 9):
        x, q = some(m=m, k=1024)
        total = np.zeros((m, 24), np.float16)
        for k in range(0, 1024, 32):
            total += (x[:, k : k + 32] @ np.asarray(q)[:, k : k + 32].T).astype(np.float16)
        assert gq.diagnose(total.astype(np.float32), x, q).fault == "f16-accumulation"


def test_one_wrong_element_beside_a_store_in_half_is_found():
    x, q = some()
    y = (x @ q.T).astype(np.float16).astype(np.float32)
    y[4, 5] += 64
    found = gq.diagnose(y, x, q)
    assert not found.ok
    assert found.where["elements"] == 1


@pytest.mark.parametrize("extra", [2, -2])
@pytest.mark.parametrize("name", ["q4_0", "q6_K", "q8_0"])
def test_a_stride_whose_scales_are_not_finite_is_still_a_stride(name, extra):
    x, q = some(name, m=9, n=48, k=1024)
    flat, row = q.raw.reshape(-1), q.raw.shape[1]
    at = (np.arange(48)[:, None] * (row + extra) + np.arange(row)) % flat.size
    with np.errstate(all="ignore"):
        w = q.format.unpack(np.ascontiguousarray(flat[at]).view(q.format.dtype))
        scale = np.repeat(w[1], w[0].shape[-1] // w[1].shape[-1], axis=-1)
        dense = (w[0] * scale).reshape(48, 1024)
        y = (x @ dense.T).astype(np.float32)
    assert not np.isfinite(y).all()
    found = gq.diagnose(y, x, q)
    assert found.fault == "row-stride", found.text


def test_a_nan_beside_no_stride_is_a_nan():
    x, q = some()
    y = x @ q.T
    y[2, 3] = np.nan
    assert gq.diagnose(y, x, q).fault == "nan"


@pytest.mark.parametrize("factor", [16, 100, 1000])
def test_a_large_factor_beside_half_sums(factor):
    x, q = outlying("q4_0")
    y = wrong_kernels.run("q4_0", q.raw, x, "cuda", order=0) * np.float32(factor)
    assert gq.diagnose(y, x, q).fault == "scaled"


@pytest.mark.parametrize(("name", "convention"), [("q4_0", "cuda"), ("q5_0", "cuda"), ("q5_0", "cpu")])
def test_exchanged_columns_beside_an_arithmetic_that_only_they_show(name, convention):
    x, q = outlying(name)
    y = wrong_kernels.run(name, q.raw, x, convention, order=0)
    for order in (np.arange(40) ^ 7, np.random.default_rng(2).permutation(40)):
        found = gq.diagnose(y[:, order], x, q)
        assert found.fault == "rows-permuted", found.text
    y[:, 8:] = np.tile(y[:, :8], 4)
    assert gq.diagnose(y, x, q).fault == "tile-duplicated"


@pytest.mark.parametrize("convention", ["cpu", "cuda"])
def test_one_tile_repeated_in_a_single_row(convention):
    x, q = some("q4_0", m=1, n=64, k=512)
    y = wrong_kernels.run("q4_0", q.raw, x, convention, order=0)
    y[:, 8:] = np.tile(y[:, :8], 7)
    found = gq.diagnose(y, x, q)
    assert found.fault == "tile-duplicated", found.text
