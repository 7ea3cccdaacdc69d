"""Encoding: ggml's bytes, on every kind of row."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from block_cases import assert_same_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ggmlq as gq
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.formats import FORMATS
from ggmlq.ops.quantize import any_invalid

ENCODED = [fmt for fmt in FORMATS.values() if fmt.can_quantize and fmt.name != "f32"]
PACKED = [fmt for fmt in ENCODED if getattr(fmt, "pack", ...) is not None]  # the rest: test_encode_grids.py
BLOCKS = [fmt for fmt in PACKED if fmt.block_size > 1]


def by_name(fmt):
    return fmt.name


def encode(x, fmt):
    """Through the public function; scales that overflow warn, which is not the question here."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return gq.quantize(x, fmt).blocks


def ggml_encode(libggml, x, fmt):
    blocks = libggml.quantize(x, fmt).view(fmt.dtype)
    if fmt.name == "q8_K":  # ggml leaves the sums of a block of zeros unwritten
        blocks["bsums"][blocks["d"] == 0] = 0
    return blocks


@pytest.mark.parametrize("kind", ["uniform", "normal", "edges", "extremes", "steps"])
@pytest.mark.parametrize("fmt", PACKED, ids=by_name)
def test_golden(fmt, kind, golden):
    x = golden("inputs")[kind]
    want = golden(fmt.name)[f"{kind}/blocks"].view(fmt.dtype)
    assert_same_blocks(encode(x, fmt), want, fmt, x)


@pytest.mark.llama
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", PACKED, ids=by_name)
def test_libggml(fmt, kind, libggml):
    x = rows(kind, 48, 1024, seed=7 * fmt.id)
    assert_same_blocks(encode(x, fmt), ggml_encode(libggml, x, fmt), fmt, x)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
ties = st.integers(-300, 300).map(lambda i: i / 2)
signed_zeros = st.sampled_from([0.0, -0.0])
subnormals = st.integers(-(2**23), 2**23).map(lambda i: i * 2.0**-149)
values = st.one_of(ties, signed_zeros, subnormals, floats)


@pytest.mark.llama
@pytest.mark.parametrize("fmt", PACKED, ids=by_name)
def test_libggml_on_ties_zeros_and_subnormals(fmt, libggml):
    @settings(max_examples=40, deadline=None)
    @given(hnp.arrays(np.float32, (2, 256), elements=values, fill=st.one_of(ties, signed_zeros, floats)))
    def check(x):
        assert_same_blocks(encode(x, fmt), ggml_encode(libggml, x, fmt), fmt, x)

    check()


# Error of normal rows in percent of their root mean square, as ggml's own encoders have it.
BUDGET = {
    "q2_K": 29.6, "q3_K": 15.1, "q4_K": 7.14, "q5_K": 3.62, "q6_K": 1.78, "iq4_nl": 7.61, "iq4_xs": 7.67,
}  # fmt: skip


@pytest.mark.parametrize("name", BUDGET)
def test_searched_encodings_are_as_near_as_ever(name):
    x = rows("normal", 64, 1024, seed=3)
    error = np.sqrt(gq.nmse(np.asarray(gq.quantize(x, name)), x))
    assert 100 * error <= 1.02 * BUDGET[name]


def test_rows_are_independent_of_the_slab(monkeypatch):
    """Long arrays are encoded and decoded slab by slab."""
    x = rows("normal", 50, 256)
    monkeypatch.setattr(
        import_module("ggmlq.ops.dequantize"), "PATIENCE", 1 << 60
    )  # compiled code has no slabs
    whole = gq.quantize(x, "q4_0")
    values = whole.dequantize()
    monkeypatch.setattr(import_module("ggmlq.ops.quantize"), "SLAB", 700)
    monkeypatch.setattr(import_module("ggmlq.ops.dequantize"), "SLAB", 700)
    assert np.array_equal(gq.quantize(x, "q4_0").raw, whole.raw)
    assert np.array_equal(whole.dequantize(), values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_input_dtypes(dtype):
    x = rows("f16", 4, 64)
    assert np.array_equal(gq.quantize(x.astype(dtype), "q5_1").raw, gq.quantize(x, "q5_1").raw)


def test_input_may_be_strided():
    x = rows("normal", 8, 128)
    assert np.array_equal(gq.quantize(x[::2, ::-1], "q4_1").raw, gq.quantize(x[::2, ::-1].copy(), "q4_1").raw)
    assert np.array_equal(gq.quantize(x.T.copy().T, "q8_0").raw, gq.quantize(x, "q8_0").raw)


def test_leading_axes():
    x = rows("normal", 12, 64)
    q = gq.quantize(x.reshape(3, 4, 64), "q4_0")
    assert q.shape == (3, 4, 64)
    assert np.array_equal(q.raw.reshape(12, -1), gq.quantize(x, "q4_0").raw)
    assert gq.quantize(x[0], "q4_0").shape == (64,)
    assert gq.quantize(x[:0], "q4_0").shape == (0, 64)


@pytest.mark.slow
def test_imatrix_is_ignored_where_ggml_ignores_it():
    x, weights = rows("normal", 4, 256), rows("uniform", 1, 256)[0] ** 2
    for name in ("q8_0", "mxfp4", "nvfp4", "tq1_0", "tq2_0", "q1_0", "q2_0", "f16"):
        assert np.array_equal(gq.quantize(x, name, imatrix=weights).raw, gq.quantize(x, name).raw)


@pytest.mark.parametrize(
    ("name", "x"), [("q4_0", 1e6), ("q8_0", 1e7), ("f16", 1e5), ("q4_1", 2e6), ("q8_1", 2e6)]
)
def test_a_scale_that_overflows_is_a_warning_that_says_where(name, x):
    data = np.ones((3, 256), np.float32)
    data[2, 200] = x
    with pytest.warns(RuntimeWarning, match=r"1 blocks have .*\(the first is x\[2, (192|200):"):
        gq.quantize(data, name)


def test_bfloat16_input():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = rows("bf16", 4, 64)
    assert np.array_equal(gq.quantize(x.astype(ml_dtypes.bfloat16), "q5_0").raw, gq.quantize(x, "q5_0").raw)
    with pytest.warns(RuntimeWarning, match="bf16 cannot hold"):
        assert np.isinf(gq.quantize(np.float32([3.4e38]), "bf16").dequantize()).all()


def test_the_sum_of_q1_0_is_in_order():
    """Tiny terms after a large one are lost one by one, as in ggml; another order would keep them."""
    x = np.full((1, 128), 2.0**-20, np.float32)
    x[0, 0] = 2**4 + 2**-7
    assert gq.quantize(x, "q1_0").blocks["d"][0, 0] == 0.125


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sixteen_bits_that_are_no_number(name):
    """Two maxima say the same as looking at each."""
    fmt, every = gq.formats[name], np.arange(1 << 16, dtype="<u2")
    with np.errstate(invalid="ignore"):
        bad = fmt.invalid(every.view(fmt.dtype))
    told = [any_invalid(fmt, one.view(np.uint8)) for one in every.reshape(-1, 1)]
    assert told == bad.tolist()
    assert any_invalid(fmt, every.view(np.uint8))
    assert not any_invalid(fmt, every[~bad].view(np.uint8))
    assert not any_invalid(fmt, every[:0].view(np.uint8))
