"""float16 operands and results of products on the CPU, converted in vectors."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import weights

import ggmlq as gq
from ggmlq.cpu.encode.halves import float_rows, narrow_into
from ggmlq.cpu.machine.kernels import kernel


@pytest.fixture
def narrower():
    """The kernel of results, compiled if the package has not its code."""
    work = kernel("encode.floats16.narrower")
    assert work.code
    return work


def test_all_halves_are_widened_as_numpy_does():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for x in (halves.reshape(64, 1024), halves.reshape(64, 1024)[:, ::2], halves[:7][None], halves[:0][None]):
        rows = float_rows(x)
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, x.astype(np.float32))
    single = np.ones((3, 4), np.float32)
    assert float_rows(single) is single


def test_results_are_rounded_as_numpy_does(narrower, fresh):
    bits = fresh.integers(0, 1 << 32, 40_003, np.uint32)
    ties = (
        (np.arange(1 << 16, dtype=np.uint32) << 13) + np.uint32(0x38000000 - (1 << 28)) + np.uint32(1 << 12)
    )
    for values in (
        bits.view(np.float32),
        ties.view(np.float32),
        np.float32([65504, 65519.9, 65520, -1e-8, 6e-8]),
    ):
        halves = np.zeros(len(values) + 2, np.float16)
        assert narrow_into(values, halves[1:-1])
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            np.testing.assert_array_equal(halves[1:-1], values.astype(np.float16))
        assert halves[0] == halves[-1] == 0


def test_nothing_is_compiled_for_a_result(monkeypatch):
    monkeypatch.setattr(type(kernel("encode.floats16.narrower")), "at_hand", False)
    halves = np.zeros(4, np.float16)
    assert not narrow_into(np.ones(4, np.float32), halves)
    assert not halves.any()


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "f16"])
def test_products_of_halves_are_those_of_float32(narrower, fresh, name):
    """With x, out and dtype of 16 bits, of any strides."""
    n, k, m = int(fresh.integers(1, 40)), 256, int(fresh.integers(1, 40))
    q = weights(name, n, k, seed=5) if name != "f16" else gq.quantize(fresh.standard_normal((n, k)), "f16")
    x = fresh.standard_normal((m, k)).astype(np.float16)
    want = gq.linear(x.astype(np.float32), q)
    np.testing.assert_array_equal(gq.linear(x, q), want)
    with np.errstate(over="ignore"):
        half = want.astype(np.float16)
    np.testing.assert_array_equal(gq.linear(x, q, dtype=np.float16), half)
    out = np.zeros((m, 2 * n), np.float16)
    gq.linear(x[:, ::1], q, out=out[:, ::2])
    np.testing.assert_array_equal(out[:, ::2], half)
    assert not out[:, 1::2].any()
    whole = np.zeros((m, n), np.float16)
    assert gq.linear(x, q, out=whole, bias=np.ones(n, np.float32)) is whole
    np.testing.assert_array_equal(whole, (want + np.float32(1)).astype(np.float16))
    alone = gq.linear(x[0].astype(np.float32), q).astype(np.float16)  # one row may take another kernel
    np.testing.assert_array_equal(gq.linear(x[0], q, dtype=np.float16), alone)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, None])
def test_small_products_of_halves_are_warm(fresh, dtype):
    """As float32 is: by recorded launches from the second call on; errors and overflow as elsewhere."""
    q, x = weights("q4_0", 24, 64, seed=2), fresh.standard_normal((2, 3, 128)).astype(np.float16)[..., ::2]
    wide = np.ascontiguousarray(x, np.float32)
    for bias in (None, np.ones(24, np.float32)):
        for _ in range(3):
            y = gq.linear(x, q, bias=bias, dtype=dtype)
            want = gq.linear(wide, q, bias=bias)
            np.testing.assert_array_equal(y, want.astype(dtype or np.float32))
            assert y.dtype == np.dtype(dtype or np.float32)
    huge = np.full((1, 64), 65504, np.float16)
    assert np.isinf(gq.linear(huge, gq.quantize(np.full((1, 64), 9.0), "q8_0"), dtype=np.float16)).all()
    with pytest.raises(gq.GGMLQError, match="K"):
        gq.linear(x[..., :5], q)
    with pytest.raises(gq.GGMLQError, match="is no dtype"):
        gq.linear(x, q, dtype="halves")
    with pytest.raises(gq.GGMLQError, match="no such kernel"):
        gq.linear(x, q, kernel="cpu:panel")
