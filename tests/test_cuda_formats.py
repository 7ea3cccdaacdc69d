"""Decoders and encoders on a GPU: the bits and bytes of the host."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import reference
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.formats import FORMATS
from ggmlq.reference.operands import quantize_runs
from ggmlq.reference.rules import MMVQ

pytestmark = pytest.mark.cuda
ENCODED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "mxfp4"]
SEED = int(np.random.default_rng().integers(1 << 31))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", FORMATS)
def test_decode(name, dtype, cupy):
    fmt = FORMATS[name]
    shape = (7, 4 * fmt.block_size)
    sane = random_blocks(fmt, 7, 4, SEED)
    wild = np.random.default_rng(SEED).integers(0, 256, sane.nbytes, np.uint8)
    for raw in (sane, wild):
        q = gq.QuantArray.from_bytes(raw, fmt, shape)
        with np.errstate(all="ignore"):
            want = q.dequantize(dtype)
        got = q.to("cuda").dequantize(dtype)
        assert got.dtype == dtype
        assert np.array_equal(got.get(), want, equal_nan=True), f"seed {SEED}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENCODED)
def test_encode(name, kind, cupy, monkeypatch):
    from ggmlq.cuda.kernels import quantize

    x = rows(kind, 33, 512, SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scales that a half cannot hold
        want = gq.quantize(x, name)
        fits = not want.format.invalid(want.blocks).any()
        made = quantize.quantize(cupy.asarray(x), FORMATS[name])
        assert (made is not None) is fits, f"seed {SEED}"
        got = made or gq.quantize(cupy.asarray(x), name)
    assert got.device == "cuda:0"
    assert np.array_equal(got.to("cpu").raw, want.raw), f"seed {SEED}"


@pytest.mark.parametrize("name", ENCODED)
def test_encode_any_magnitude(name, cupy):
    """Blocks of all magnitudes, and values beside the middle between two codes."""
    from ggmlq.cuda.kernels import quantize

    rng = np.random.default_rng(SEED)
    power = np.exp2(rng.integers(-149, 15, (64, 16, 1)))
    near = (power * rng.integers(-48, 49, (64, 16, 32)) / 8).astype(np.float32)
    near = (near.view(np.int32) + rng.integers(-1, 2, near.shape, np.int32) * (near != 0)).view(np.float32)
    for blocks in (power * rng.standard_normal((64, 16, 32)), near):
        x = blocks.reshape(64, 512).astype(np.float32)
        want = FORMATS[name].encode(x)
        fits = ~FORMATS[name].invalid(want).reshape(64, -1).any(axis=1)
        made = quantize.quantize(cupy.asarray(x[fits]), FORMATS[name])
        assert np.array_equal(made.to("cpu").raw.reshape(fits.sum(), -1), want[fits].view(np.uint8)), SEED


@pytest.mark.parametrize("name", ENCODED)
def test_a_value_that_is_not_finite(name, cupy):
    from ggmlq.cuda.kernels import quantize

    x = rows("normal", 3, 96, SEED)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        for at in np.random.default_rng(SEED).integers(0, x.size, 5):
            wrong = x.copy()
            wrong.reshape(-1)[at] = value
            assert quantize.quantize(cupy.asarray(wrong), FORMATS[name]) is None, (SEED, at)
    assert quantize.quantize(cupy.asarray(x), FORMATS[name]) is not None


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_encode_other_floats_and_odd_addresses(dtype, cupy):
    x = rows("tiny", 4, 96).astype(dtype)
    device = cupy.asarray(x)
    assert np.array_equal(gq.quantize(device, "q8_0").to("cpu").raw, gq.quantize(x, "q8_0").raw)
    assert np.array_equal(
        gq.quantize(device[:, 32:], "q4_0").to("cpu").raw, gq.quantize(x[:, 32:], "q4_0").raw
    )
    flat = cupy.asarray(rows("normal", 1, 96)[0])[3:67]
    assert np.array_equal(gq.quantize(flat, "q4_0").to("cpu").raw, gq.quantize(flat.get(), "q4_0").raw)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tiny"])
def test_q8_1_as_llama_cpp_on_cuda(kind, cupy):
    from ggmlq.cuda.kernels.quantize import encoders, launch

    x = rows(kind, 9, 512, SEED)
    raw = cupy.empty((9, 16, 36), np.uint8)
    launch(encoders.q8_1_kernel("ggml-mmvq"), cupy.asarray(x), raw, cupy.zeros(1, np.uint32))
    blocks = raw.get().view(FORMATS["q8_1"].dtype)[..., 0]
    with np.errstate(over="ignore"):
        want = quantize_runs(x, MMVQ)
    assert np.array_equal(blocks["qs"].reshape(x.shape), want.codes)
    assert np.array_equal(blocks["d"], want.scale)
    assert np.array_equal(blocks["s"], want.sums)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_with_exact_sums(kind, cupy):
    """The planes that int8 kernels multiply are the operands of the arithmetic q8."""
    from ggmlq.cuda.layouts.unpacked import activations

    x = rows(kind, 5, 192, SEED)
    want = reference.operands.activations(x, "q8_0", "q8")
    for run in (16, 32):
        a = activations(cupy.asarray(x), run)
        assert np.array_equal(a.codes.get()[:5, :192], want.codes)
        assert np.array_equal(a.scale.get()[:6, :5].T, want.scale)
        assert not a.scale.get()[6:, :5].any()
        sums = want.codes.reshape(5, -1, run).sum(axis=2, dtype=np.int32).astype(np.float32)
        d = want.scale.astype(np.float32).repeat(32 // run, axis=1)
        assert np.array_equal(a.extra.get()[: 192 // run, :5].T, sums * d)


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "iq1_s"])
def test_planes_of_weights(name, cupy):
    from ggmlq.cuda.layouts.unpacked import unpack_weights

    fmt = FORMATS[name]
    q = gq.QuantArray.from_bytes(random_blocks(fmt, 5, 3, SEED), fmt, (5, 3 * fmt.block_size))
    w = unpack_weights(q.to("cuda"))
    parts = fmt.unpack(q.blocks)
    assert np.array_equal(w.codes.get()[:5, : q.shape[1]], parts.codes.reshape(5, -1))
    each = fmt.group // w.run
    for plane, part in ((w.scale, parts.scale), (w.extra, parts.offset)):
        if part is not None:
            runs = part.reshape(5, -1).repeat(each, axis=1)
            assert np.array_equal(plane.get()[: runs.shape[1], :5].T, runs)
            assert not plane.get()[runs.shape[1] :, :5].any()
