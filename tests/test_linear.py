"""linear: x @ q.T on the quantized weights, its arguments, and the oracle it is judged by."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
from block_cases import FEW, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS

# Rungs that explain and that nobody is given unasked: what they read of a format is its atoms, and
# test_atoms.py has those of all. Each would be compiled for each type.
EXPLAIN = ("cpu:naive", "cpu:blocked", "cpu:vectorized")
PAIRS = [
    pytest.param(name, rung, id=f"{name}-{rung.name}")
    for name in FORMATS
    for rung in gq.kernels(device="cpu")
    if rung.name not in EXPLAIN or name in (*FEW, "f32", "f16", "i8")
]


@pytest.mark.parametrize(("fmt", "kernel"), PAIRS)
def test_every_kernel_on_every_format(fmt, kernel):
    q = weights(fmt, 33, 1024, seed=3)
    taken = 0
    for m in (1, 9, 40):
        if kernel.refuses(Linear(q.format, m, 33, 1024, device="cpu")):
            continue
        x = rows("normal", m, 1024, seed=m)
        y = gq.linear(x, q, kernel=kernel.name)
        assert (y.dtype, y.shape) == (np.float32, (m, 33))
        assert_right(y, x, q, kernel)
        taken += 1
    if not taken:
        with pytest.raises(gq.GGMLQError, match=kernel.name):
            gq.linear(rows("normal", 9, 1024, seed=9), q, kernel=kernel.name)


@settings(max_examples=60, deadline=None)
@given(
    m=st.sampled_from([0, 1, 2, 8, 9, 63, 64, 65]),
    n=st.sampled_from([0, 1, 2, 31, 64, 129]),
    blocks=st.integers(1, 9),
    name=st.sampled_from(["q4_0", "q8_0", "q4_K", "iq1_s", "mxfp4", "f16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_shapes(m, n, blocks, name, seed):
    q = weights(name, n, blocks * FORMATS[name].block_size, seed)
    x = np.random.default_rng(seed).standard_normal((m, q.shape[1]), np.float32)
    y = x @ q.T
    assert y.shape == (m, n)
    assert_right(y, x, q)


def test_slabs_of_weights(monkeypatch):
    monkeypatch.setattr("ggmlq.cpu.linear.r2_dequant.SLAB_BYTES", 4096)
    q, x = weights("q6_K", 50, 512), rows("normal", 5, 512)
    (kernel,) = (k for k in gq.kernels(device="cpu") if k.name == "cpu:dequant")
    assert_right(gq.linear(x, q, kernel=kernel.name), x, q, kernel)


def test_forms_of_x():
    q = weights("q4_0", 7, 128)
    x = rows("normal", 12, 128)  # so few that half of them take the same kernel on any CPU
    y = gq.linear(x, q)
    assert np.array_equal(x @ q.T, y)
    assert np.array_equal(gq.linear(x[3], q), gq.linear(x[3:4], q)[0])
    assert gq.linear(x[3], q).shape == (7,)
    assert np.array_equal(gq.linear(x.reshape(2, 3, 2, 128), q).reshape(12, 7), y)
    assert np.allclose(gq.linear(np.asfortranarray(x), q), y, rtol=1e-5, atol=1e-5)
    assert np.allclose(gq.linear(x[::2], q), y[::2], rtol=1e-5, atol=1e-5)
    assert np.allclose(gq.linear(np.repeat(x, 2, axis=1)[:, ::2], q), y, rtol=1e-5, atol=1e-5)
    assert np.array_equal(gq.linear(x.tolist(), q), gq.linear(x.astype(np.float64), q))


@pytest.mark.parametrize("name", ["f32", "f16", "q4_0"])
def test_bits_do_not_depend_on_how_x_lies(name):
    q = weights(name, 33, 264 if name != "q4_0" else 512)
    x = rows("normal", 17, q.shape[1])
    for kernel in ("auto", "cpu:dequant"):
        y = gq.linear(x, q, kernel=kernel)
        for same in (np.asfortranarray(x), x[::-1].copy()[::-1], x[:, ::-1].copy()[:, ::-1], x.astype(">f4")):
            assert np.array_equal(gq.linear(same, q, kernel=kernel), y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes(dtype):
    q, x = weights("q8_0", 5, 64), rows("f16", 3, 64)
    assert gq.linear(x.astype(dtype), q).dtype == np.float32
    assert np.array_equal(gq.linear(x.astype(dtype), q), gq.linear(x, q))
    y = gq.linear(x, q, dtype=dtype)
    assert y.dtype == dtype
    assert np.array_equal(y, gq.linear(x, q).astype(dtype))


def test_bias():
    q, x, bias = weights("q5_K", 5, 256), rows("normal", 3, 256), rows("uniform", 1, 5)[0]
    assert np.allclose(gq.linear(x, q, bias=bias), gq.linear(x, q) + bias)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_out(dtype):
    q, x, bias = weights("q4_1", 6, 64), rows("normal", 4, 64), np.ones(6, np.float32)
    want = gq.linear(x, q, bias=bias)
    out = np.full((4, 6), np.nan, dtype)
    assert gq.linear(x, q, out=out, bias=bias) is out
    assert np.array_equal(out, want.astype(dtype))
    wide = np.full((4, 12), 7, dtype)
    gq.linear(x, q, out=wide[:, ::2], bias=bias)
    assert np.array_equal(wide[:, ::2], want.astype(dtype))
    assert (wide[:, 1::2] == 7).all()


@pytest.mark.parametrize("overlap", ["x", "bias", "weights"])
def test_out_may_overlap_what_is_read(overlap, monkeypatch):
    """Several slabs, so that a kernel that wrote into its operands would read what it wrote."""
    monkeypatch.setattr("ggmlq.cpu.linear.r2_dequant.SLAB_BYTES", 4 * 64 * 16)
    x, w, bias = rows("normal", 64, 64), rows("normal", 64, 64, seed=1), rows("uniform", 1, 64)[0]
    q = gq.QuantArray.from_bytes(w, "f32", (64, 64))
    want = gq.linear(x, q, bias=bias)
    if overlap == "bias":
        out = np.empty((64, 64), np.float32)
        out[5] = bias
        bias = out[5]
    else:
        out = x if overlap == "x" else w
    assert np.array_equal(gq.linear(x, q, bias=bias, out=out), want)


def test_a_wrong_bias_leaves_out_alone():
    q, x, out = weights("q8_0", 6, 64), rows("normal", 4, 64), np.full((4, 6), 7, np.float32)
    with pytest.raises(gq.GGMLQError, match="bias"):
        gq.linear(x, q, bias=np.ones(5, np.float32), out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("out", [None, np.float16, np.float32])
def test_infinities_are_results_without_a_warning(out):
    q = gq.quantize(np.full((2, 32), 3e4, np.float32), "f32")
    x = np.stack([np.full(32, 3e38), np.full(32, np.inf), np.full(32, 1e300)])
    y = gq.linear(x, q, out=None if out is None else np.empty((3, 2), out))
    assert np.isinf(y).all()


def test_a_part_of_the_weights():
    q, x = weights("q4_K", 12, 512), rows("normal", 3, 512)
    y = x @ q.T
    assert np.allclose(x @ q[3:9].T, y[:, 3:9], rtol=1e-5, atol=1e-5)
    assert np.allclose(x @ q[::-1].T, y[:, ::-1], rtol=1e-5, atol=1e-5)
    assert np.allclose(x @ q[[5, 5, 0]].T, y[:, [5, 5, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fmt", ["q4_0", "q4_K", "iq4_xs", "f16"])
def test_sums_of_nothing_are_zero(fmt):
    q, x = gq.QuantArray.from_bytes(b"", fmt, (8, 0)), np.zeros((2, 0), np.float32)
    assert (x @ q.T == 0).all()
    assert (gq.linear(x, q, bias=np.arange(8, dtype=np.float32)) == np.arange(8)).all()


def test_not_a_number_stays_one():
    q, x = weights("q8_0", 4, 32), rows("normal", 3, 32)
    x[1, 5] = np.nan
    assert np.isnan(x @ q.T).any(axis=1).tolist() == [False, True, False]


# --- the oracle -----------------------------------------------------------------------------


def test_reference_is_float64_on_the_decoded_weights():
    q, x = weights("q3_K", 9, 512), rows("normal", 5, 512)
    want = x.astype(np.float64) @ np.asarray(q).astype(np.float64).T
    y = gq.reference.linear(x, q)
    assert y.dtype == np.float64
    assert np.allclose(y, want, rtol=1e-13, atol=1e-12)
    assert gq.reference.linear(x[0], q, arithmetic="exact").shape == (9,)


def test_reference_names_the_arithmetics_it_has():
    with pytest.raises(gq.GGMLQError, match="'exact'"):
        gq.reference.linear(rows("normal", 1, 32), weights("q4_0", 1, 32), "ggml-gpu")


def test_reference_keeps_what_float32_would_lose():
    x = np.array([[1 + 2.0**-40, 1.0]])
    q = gq.QuantArray.from_bytes(np.array([[1.0, -1.0]]), "f64", (1, 2))
    assert gq.reference.linear(x, q)[0, 0] == 2.0**-40
    q = gq.QuantArray.from_bytes(np.array([[1 + 2.0**-40, -1.0]]), "f64", (1, 2))
    assert gq.reference.linear(np.ones((1, 2)), q)[0, 0] == 2.0**-40


def test_reference_goes_through_all_slabs(monkeypatch):
    q, x = weights("q4_0", 50, 128), rows("normal", 3, 128)
    want = gq.reference.linear(x, q)
    monkeypatch.setattr(sys.modules["ggmlq.reference.linear"], "SLAB", 1000)
    assert np.allclose(gq.reference.linear(x, q), want, rtol=1e-13, atol=1e-13)


# --- the ladder -----------------------------------------------------------------------------


def test_kernels_print_as_a_table():
    table = repr(gq.kernels())
    assert table.splitlines()[0].split() == ["kernel", "level", "arithmetic", "auto", "teaches"]
    assert "cpu:dequant" in table


@pytest.mark.parametrize("granted", [False, True])
def test_kernel_records(granted, matrix_unit):
    matrix_unit(granted)
    (ground, *_, top) = gq.kernels(op="linear", format="q4_K", device="cpu")
    assert (ground.name, ground.device, ground.level, ground.arithmetic) == ("cpu:naive", "cpu", 0, "f32")
    assert (top.name, top.arithmetic) == (("cpu:amx", "bf16") if granted else ("cpu:panels", "q8"))
    assert ground.teaches.startswith("Each weight is decoded where")
    assert callable(ground.refuses)


def test_a_kernel_is_chosen_by_name_or_by_arithmetic():
    q, x = weights("q4_0", 4, 32), rows("normal", 2, 32)
    want = gq.linear(x, q, kernel="cpu:dequant")
    assert np.array_equal(gq.linear(x, q, arithmetic="f32"), want)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "cpu:magic"}, "kernel='cpu:magic'.*no such kernel; those for cpu are .*cpu:dequant"),
        ({"arithmetic": "ggml-magic"}, "multiplies in f32, ggml-magic was asked for"),
        ({"kernel": "cpu:dequant", "arithmetic": "q8"}, "multiplies in f32"),
    ],
)
def test_no_kernel_takes_it(options, words):
    with pytest.raises(gq.GGMLQError, match=words):
        gq.linear(rows("normal", 2, 32), weights("q4_0", 4, 32), **options)


@pytest.mark.parametrize("m", [1, 40])
def test_bfloat16_activations_have_the_bits_of_float32(m, fresh):
    q = gq.quantize(fresh.standard_normal((19, 256), np.float32), "q4_0")
    x = fresh.standard_normal((2, m, 256), np.float32).astype(ml_dtypes.bfloat16)
    for more in ({}, {"kernel": "cpu:dequant"}, {"invariant": True}, {"bias": np.ones(19, np.float32)}):
        assert np.array_equal(gq.linear(x, q, **more), gq.linear(x.astype(np.float32), q, **more))
