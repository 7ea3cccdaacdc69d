"""The documents' functions on a GPU: the bits of the CPU, and products."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f

pytestmark = pytest.mark.cuda
BLOCK = [128, 128]


def operands(rng, m, n, k):
    codes = [rng.integers(0, 127, shape).astype(np.uint8) for shape in ((m, k), (n, k))]
    shapes = (m, -(-k // 128)), (-(-n // 128), -(-k // 128))
    return *codes, *(rng.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes)


def exact(A, B, As, Bs):
    x, w = gq.ScaledArray(A, As, "e4m3", (1, 128)), gq.ScaledArray(B, Bs, "e4m3", (128, 128))
    return gq.reference.scaled_linear(x, w)


def far(y, reference):
    return np.abs(y.get() - reference).mean() / np.abs(reference).mean()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_quantizers_give_the_bits_of_the_cpu(fresh, cupy, dtype):
    x = fresh.standard_normal((37, 512)).astype(dtype)
    for function in (f.act_quant, f.weight_quant):
        here, there = function(x), function(cupy.asarray(x))
        for a, b in zip(here, there, strict=True):
            assert isinstance(b, cupy.ndarray)
            assert np.array_equal(a, b.get())
    codes, scales = f.weight_quant(cupy.asarray(x))
    assert np.array_equal(f.weight_dequant(codes, scales).get(), f.weight_dequant(codes.get(), scales.get()))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 128, 256), (83, 576, 388), (200, 130, 1024)])
def test_products(fresh, cupy, m, n, k):
    host = operands(fresh, m, n, k)
    parts = [cupy.asarray(part) for part in host]
    y = f.w8a8_block_fp8_matmul(*parts, BLOCK, np.float32)
    # Hopper's tensor cores align products with the largest of a step and cut off 2^-14 of it each, which
    # adds up where all codes are positive. The largest is below 30 means.
    assert far(y, exact(*host)) <= 30 * 2**-14
    assert far(f.native_w8a8_block_fp8_matmul(*parts, BLOCK, np.float32), exact(*host)) <= 1e-5
    sizes = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128}
    assert cupy.array_equal(f.w8a8_block_fp8_matmul(*parts, BLOCK, np.float32, config=sizes), y)
    assert f.w8a8_block_fp8_matmul(*parts, BLOCK).dtype == np.float16


def test_products_of_nothing(cupy):
    for m, n, k in ((0, 5, 128), (5, 0, 128), (5, 3, 0)):
        parts = [cupy.asarray(part) for part in operands(np.random.default_rng(0), m, n, k)]
        y = f.w8a8_block_fp8_matmul(*parts, BLOCK, np.float32)
        assert y.shape == (m, n)
        assert not y.any()


def test_int8(fresh, cupy):
    a, b = fresh.integers(-128, 128, (130, 70), np.int8), fresh.integers(-128, 128, (70, 33), np.int8)
    sa = fresh.uniform(0.01, 1, 130).astype(np.float32)
    here = f.int8_gemm_fp32_output(a, b, sa, 0.5)
    assert np.array_equal(
        f.int8_gemm_fp32_output(cupy.asarray(a), cupy.asarray(b), cupy.asarray(sa), 0.5).get(), here
    )
    x = fresh.standard_normal(100) * 100
    for function in (f.quantize_int8, f.quantize_fp8_e4m3):
        assert np.array_equal(function(cupy.asarray(x), 0.1).get(), function(x, 0.1))


def test_one_device_for_all(fresh, cupy):
    A, B, As, Bs = operands(fresh, 4, 128, 128)
    with pytest.raises(gq.GGMLQError, match=r"A on cuda:0.*cupy\.asarray"):
        f.w8a8_block_fp8_matmul(cupy.asarray(A), B, As, Bs, BLOCK)
