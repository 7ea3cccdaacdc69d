"""The documents' functions on torch tensors: the same numbers, as tensors."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def pair(fresh):
    """Activations and weights as arrays and as tensors."""
    arrays = [fresh.standard_normal(shape).astype(np.float32) for shape in ((7, 256), (200, 256))]
    return arrays, [torch.from_numpy(a) for a in arrays]


def test_quantizers(pair):
    for arrays, tensors in zip(*[[f.act_quant(x), f.weight_quant(w)] for x, w in pair], strict=True):
        assert tensors[0].dtype == torch.float8_e4m3fn
        assert np.array_equal(tensors[0].view(torch.uint8).numpy(), arrays[0])
        assert np.array_equal(tensors[1].numpy(), arrays[1])
    b, b_s = f.weight_quant(pair[1][1].bfloat16())
    assert np.array_equal(
        f.weight_dequant(b, b_s).numpy(), f.weight_dequant(b.view(torch.uint8).numpy(), b_s.numpy())
    )


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_products(pair, kind):
    x, w = pair[1]
    (a, a_s), (b, b_s) = f.act_quant(x), f.weight_quant(w)
    dtype = getattr(torch, kind)
    for product in (f.w8a8_block_fp8_matmul, f.native_w8a8_block_fp8_matmul):
        y = product(a, b, a_s, b_s, [128, 128], dtype)
        assert y.dtype == dtype
        assert gq.nmse(y.double().numpy(), (x.double() @ w.double().T).numpy()) < 3e-3
        assert product(a, b, a_s, b_s, [128, 128]).dtype == torch.float16
    assert f.fp8_gemm(a, a_s, b, b_s).dtype == torch.float32


def test_scales_that_are_powers_of_two(pair):
    (a, a_s), (b, b_s) = (f.act_quant(part.numpy(), scale="e8m0") for part in pair[1])
    of_torch = [torch.from_numpy(part).view(torch.float8_e8m0fnu) for part in (a_s, b_s)]
    y = f.fp8_gemm(torch.from_numpy(a), of_torch[0], torch.from_numpy(b), of_torch[1])
    assert np.array_equal(y.numpy(), f.fp8_gemm(a, a_s, b, b_s))
    with pytest.raises(gq.GGMLQError, match=r"a_s is float8_e4m3fn; .*a_s\.float"):
        f.fp8_gemm(
            torch.from_numpy(a), of_torch[0].view(torch.float8_e4m3fn), torch.from_numpy(b), of_torch[1]
        )


def test_int8(fresh):
    a, b = (torch.from_numpy(fresh.integers(-128, 127, shape, np.int8)) for shape in ((5, 9), (9, 4)))
    y = f.int8_gemm_fp32_output(a, b, torch.tensor(0.5), 0.25)
    assert torch.equal(y, (a.float() @ b.float()) * 0.125)


def test_gradients_are_refused(pair):
    with pytest.raises(gq.GGMLQError, match=r"x\.detach\(\)"):
        f.act_quant(pair[1][0].requires_grad_())
