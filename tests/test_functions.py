"""The documents' functions: their examples, their tests, their checks in words."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f

DECODED = gq.codes["e4m3"].table
BLOCK = [128, 128]


def codes(rng, *shape):
    """Finite codes of either sign."""
    return (rng.integers(0, 0x7F, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)


def operands(rng, m, n, k, bn=128, bk=128):
    """A, B, As, Bs as the peers' tests make them: codes all over, scales around 1e-2."""
    scales = (rng.uniform(0.1, 1, shape).astype(np.float32) * 1e-2 for shape in
              ((m, -(-k // bk)), (-(-n // bn), -(-k // bk))))  # fmt: skip
    return codes(rng, m, k), codes(rng, n, k), *scales


def exact(A, B, As, Bs, bn, bk):
    """The product in float64, element by element's own scale."""
    k, n = A.shape[-1], B.shape[0]
    a = DECODED[A].astype(float) * np.repeat(As.astype(float), bk, -1)[..., :k]
    b = DECODED[B].astype(float) * np.repeat(np.repeat(Bs.astype(float), bk, 1)[:, :k], bn, 0)[:n]
    return a @ b.T


def far(y, reference):
    """Mean error over mean magnitude; 0 of nothing."""
    return (
        np.abs(np.asarray(y, float) - reference).mean() / np.abs(reference).mean() if reference.size else 0.0
    )


# --- quantizers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(512,), (7, 512), (2, 3, 384), (0, 128), (3, 0)])
def test_act_quant_is_its_formula(fresh, shape, dtype):
    x = (fresh.standard_normal(shape) * 10 ** fresh.uniform(-3, 3)).astype(dtype)
    y, s = f.act_quant(x)
    assert (y.dtype, y.shape, s.dtype, s.shape) == (
        np.uint8,
        shape,
        np.float32,
        (*shape[:-1], shape[-1] // 128),
    )
    assert y.flags.writeable
    assert s.flags.writeable
    wide = x.astype(np.float32).reshape(*s.shape, 128)
    scale = np.maximum(np.abs(wide).max(-1, initial=0), np.float32(1e-10)) / np.float32(448)
    want = (wide / scale[..., None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(s, scale)
    assert np.array_equal(y, want.reshape(shape))


def test_any_strides_will_do(fresh):
    x = fresh.standard_normal((256, 40)).astype(np.float32)
    for view in (x.T, x[::-1].T, np.asfortranarray(x.T)[:, ::-1]):
        for ours, plain in zip(f.act_quant(view), f.act_quant(view.copy()), strict=True):
            assert np.array_equal(ours, plain)
        for ours, plain in zip(f.weight_quant(view, 64), f.weight_quant(view.copy(), 64), strict=True):
            assert np.array_equal(ours, plain)


def test_a_group_of_zeros(fresh):
    x = fresh.standard_normal((2, 256)).astype(np.float32)
    x[1, :128] = 0
    y, s = f.act_quant(x)
    assert not y[1, :128].any()
    assert s[1, 0] == np.float32(1e-10) / np.float32(448)
    y, s = f.act_quant(x, eps=0)  # as the document
    assert s[1, 0] == 0
    assert (y[1, :128] & 0x7F == 0x7F).all()


def test_scales_may_be_powers_of_two(fresh):
    x = fresh.standard_normal((5, 256)).astype(np.float32)
    y, s = f.act_quant(x, scale="e8m0")
    assert s.dtype == np.uint8
    both = f.fp8_gemm(y, s, y, s), f.fp8_gemm(y, gq.codes["e8m0"].decode(s), y, gq.codes["e8m0"].decode(s))
    assert np.array_equal(*both)


@pytest.mark.parametrize("shape", [(128, 128), (576, 300), (1, 1), (129, 127), (100, 257)])
def test_weights_there_and_back(fresh, shape):
    w = fresh.standard_normal(shape).astype(np.float32)
    y, s = f.weight_quant(w)
    assert s.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    back = f.weight_dequant(y, s)
    scale = np.repeat(np.repeat(s, 128, 0), 128, 1)[: shape[0], : shape[1]]
    assert np.array_equal(back, DECODED[y] * scale)
    assert np.abs(back - w).max() <= np.abs(w).max() / 16
    assert np.array_equal(f.weight_dequant(y.view(ml_dtypes.float8_e4m3fn), s), back)
    for array in (y, s, back):
        assert array.flags.writeable


# --- FP8 products -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 128, 256), (7, 576, 388), (83, 130, 512), (130, 64, 1000)])
def test_the_peers_test(fresh, m, n, k, output_dtype):
    """Of fp8.md §13, with shapes as ragged as theirs."""
    A, B, As, Bs = operands(fresh, m, n, k)
    reference = exact(A, B, As, Bs, 128, 128)
    y = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, output_dtype)
    assert (y.dtype, y.shape) == (np.dtype(output_dtype), (m, n))
    least = {np.float32: 1e-5, np.float16: 1e-3}.get(output_dtype, 4e-3)
    assert far(y, reference) <= least
    assert far(f.native_w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, output_dtype), reference) <= least
    assert f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK).dtype == np.float16


def test_the_worked_example(fresh):
    """A 640 × 512, B 512 × 384, blocks of 128 × 128 in both: scales 5 × 4 and, as written there, 4 × 3."""
    A, B = codes(fresh, 640, 512), codes(fresh, 384, 512)
    sa, sb = (fresh.uniform(0.1, 1, shape).astype(np.float32) for shape in ((5, 4), (4, 3)))
    x, w = gq.ScaledArray(A, sa, "e4m3", BLOCK), gq.ScaledArray(B, sb.T, "e4m3", BLOCK)
    wide = exact(A, B, np.repeat(sa, 128, 0), sb.T, 128, 128)
    assert wide.shape == (640, 384)
    y = f.w8a8_block_fp8_matmul(A, B, np.repeat(sa, 128, 0), sb.T, BLOCK, np.float32)
    assert far(y, wide) <= 1e-5
    assert far(x[:130] @ w[:128].T, wide[:130, :128]) <= 1e-5


def test_the_document_of_blocks_128_128_64(fresh):
    x, w = (fresh.standard_normal((128, 64)).astype(np.float32) for _ in range(2))
    (A, As), (B, Bs) = f.act_quant(x, 64), f.weight_quant(w, 64)
    y = f.w8a8_block_fp8_matmul(A, B, As, Bs, [64, 64], np.float32)
    assert far(y, exact(A, B, As, Bs, 64, 64)) <= 1e-5
    wide = x.astype(float) @ w.T
    difference = ((y - wide) ** 2).sum() / ((y.astype(float) ** 2).sum() + (wide**2).sum())
    assert difference < 1e-3


def test_any_shape_block_and_strides(fresh, rounds):
    for _ in rounds(2):
        m, n = (int(v) for v in fresh.integers(0, 70, 2))
        k, bn, bk = (
            int(fresh.integers(0, 300)),
            int(2 ** fresh.integers(4, 8)),
            int(2 ** fresh.integers(4, 8)),
        )
        if fresh.random() < 0.2:
            bn, bk = (int(v) for v in fresh.integers(1, 200, 2))  # no powers of two: no default configuration
        A, B, As, Bs = operands(fresh, m, n, k, bn, bk)
        reference, sizes = exact(A, B, As, Bs, bn, bk), exact(A & 0x7F, B & 0x7F, As, Bs, bn, bk)
        turned = [np.asfortranarray(a) if fresh.random() < 0.5 else a for a in (A, B, As, Bs)]
        y = f.w8a8_block_fp8_matmul(*turned, [bn, bk], np.float32)
        native = f.native_w8a8_block_fp8_matmul(*turned, (bn, bk), np.float32)
        assert y.shape == native.shape == (m, n)
        # Sums of k products in float32, beside the sum of their sizes: few results may all but cancel.
        limit = (k + 4) * 2.0**-24 * sizes
        assert (np.abs(y - reference) <= limit).all(), (m, n, k, bn, bk)
        assert (np.abs(native - reference) <= limit).all(), (m, n, k, bn, bk)


def test_leading_axes_and_other_floats(fresh):
    A, B, As, Bs = operands(fresh, 12, 40, 256)
    flat = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK)
    assert np.array_equal(
        f.w8a8_block_fp8_matmul(A.reshape(3, 4, 256), B, As.reshape(3, 4, 2), Bs, BLOCK),
        flat.reshape(3, 4, 40),
    )
    one = f.w8a8_block_fp8_matmul(A[0], B, As[0], Bs, BLOCK)
    # One row may be summed in another order: last bits of float32, which may fall to another half.
    assert one.shape == flat[0].shape
    np.testing.assert_allclose(one, flat[0], rtol=2**-10, atol=1e-5 * float(np.abs(flat).max()))
    same = f.w8a8_block_fp8_matmul(
        A.view(ml_dtypes.float8_e4m3fn), B.view(ml_dtypes.float8_e4m3fn), As, Bs, BLOCK
    )
    assert np.array_equal(same, flat)
    other = (A & 0x7B).view(ml_dtypes.float8_e5m2)  # finite in e5m2
    want = other.astype(float) * np.repeat(As, 128, 1) @ (DECODED[B] * np.repeat(Bs[0], 128)).T
    assert far(f.w8a8_block_fp8_matmul(other, B, As, Bs, BLOCK, np.float32), want) <= 1e-5


def test_nan_and_infinity_go_through(fresh):
    A, B, As, Bs = operands(fresh, 5, 30, 256)
    A[2, 7], As[4, 1] = 0x7F, np.inf
    for product in (f.w8a8_block_fp8_matmul, f.native_w8a8_block_fp8_matmul):
        y = product(A, B, As, Bs, BLOCK, np.float32)
        assert np.isnan(y[2]).all()
        assert not np.isfinite(y[4]).any()
        assert np.isfinite(y[[0, 1, 3]]).all()
    with np.errstate(all="raise"):
        assert np.isinf(f.w8a8_block_fp8_matmul(A, B, As * 1e5, Bs, BLOCK)[0]).any()  # float16 overflows


def test_fp8_gemm_takes_rows_or_blocks(fresh):
    x, w = fresh.standard_normal((9, 384)), fresh.standard_normal((200, 384))
    (a, a_s), (b, b_s), (c, c_s) = f.act_quant(x), f.weight_quant(w), f.act_quant(w)
    assert far(f.fp8_gemm(a, a_s, b, b_s), exact(a, b, a_s, b_s, 128, 128)) <= 1e-5
    y = f.fp8_gemm(a, a_s, c, c_s)
    assert y.dtype == np.float32
    assert far(y, exact(a, c, a_s, c_s, 1, 128)) <= 1e-5
    assert far(f.fp8_gemm(a, a_s, c[:1], c_s[:1]), y[:, :1].astype(float)) <= 1e-6


# --- INT8 ---------------------------------------------------------------------------------------------------


def test_the_int8_document(fresh):
    """M = N = 128, K = 64, integers of -128 … 126: all of it is exact, its tolerance is not needed."""
    a, b = fresh.integers(-128, 127, (128, 64), np.int8), fresh.integers(-128, 127, (64, 128), np.int8)
    sa, sb = fresh.uniform(0.01, 0.1, 2)
    y = f.int8_gemm_fp32_output(a, b, sa, sb)
    whole = (a.astype(int) @ b.astype(int)).astype(np.float32)
    assert np.array_equal(y, whole * (np.float32(sa) * np.float32(sb)))
    assert np.array_equal(f.int8_gemm_fp32_output(a, b), whole)
    assert np.array_equal(f.int8_gemm_fp32_output(a, np.asfortranarray(b)), whole)
    wide = np.zeros((64, 256), np.int8)
    wide[:, ::2] = b
    assert np.array_equal(f.int8_gemm_fp32_output(a[::-1], wide[:, ::2]), whole[::-1])


def test_int8_scales_of_rows_and_columns(fresh):
    m = n = 16  # of one length: told apart by name, not by size
    a, b = fresh.integers(-128, 128, (m, 33), np.int8), fresh.integers(-128, 128, (33, n), np.int8)
    sa, sb = (fresh.uniform(0.01, 1, size).astype(np.float32) for size in (m, n))
    whole = (a.astype(int) @ b.astype(int)).astype(np.float32)
    assert np.array_equal(f.int8_gemm_fp32_output(a, b, sa, sb), whole * (sa[:, None] * sb))
    assert np.array_equal(f.int8_gemm_fp32_output(a, b, sa[:, None], sb[None]), whole * (sa[:, None] * sb))
    assert np.array_equal(f.int8_gemm_fp32_output(a, b, 0.5, sb), whole * (np.float32(0.5) * sb))
    assert np.array_equal(
        f.int8_gemm_fp32_output(a, b, sa, np.float64(0.5)), whole * (sa[:, None] * np.float32(0.5))
    )


def test_int8_sums_beyond_int32():
    a = np.full((1, 200_000), -128, np.int8)
    assert f.int8_gemm_fp32_output(a, a.T)[0, 0] == 128.0 * 128 * 200_000


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 0, 2), (3, 5, 0), (1, 1, 1)])
def test_int8_edges(shape):
    m, k, n = shape
    y = f.int8_gemm_fp32_output(np.ones((m, k), np.int8), np.ones((k, n), np.int8), 2.0)
    assert y.shape == (m, n)
    assert (y == 2 * k).all()


def test_the_two_quantizers_by_the_number(fresh):
    x = fresh.standard_normal(500) * 10.0 ** fresh.integers(-2, 4, 500)
    scale = float(fresh.uniform(0.01, 2))
    ints, floats = f.quantize_int8(x, scale), f.quantize_fp8_e4m3(x, scale)
    assert (ints.dtype, floats.dtype) == (np.int8, np.float64)
    for value, i, q in zip(x, ints, floats, strict=True):
        assert i == np.clip(int(np.round(value / scale)), -128, 127) == f.quantize_int8(value, scale)
        unscaled = value / scale
        assert q == (np.sign(unscaled) * 448 if abs(unscaled) > 448 else np.round(unscaled))
    assert type(f.quantize_int8(1.234, 0.1)) is int
    assert str(f.quantize_fp8_e4m3(1.234, 0.1)) == "12.0"
    assert f.quantize_int8(np.array([np.nan, np.inf, -np.inf, 0.5, 1.5]), 1.0).tolist() == [
        0,
        127,
        -128,
        0,
        2,
    ]
    assert np.array_equal(f.quantize_int8(x.reshape(5, 100), np.full((5, 1), scale)), ints.reshape(5, 100))


# --- in words -----------------------------------------------------------------------------------------------

A, B, As, Bs = operands(np.random.default_rng(0), 8, 300, 512)
X = np.ones((4, 256), np.float32)
I8 = np.ones((4, 4), np.int8)
matmul, native = f.w8a8_block_fp8_matmul, f.native_w8a8_block_fp8_matmul
gemm = f.int8_gemm_fp32_output
FNUZ = A.view(ml_dtypes.float8_e4m3fnuz)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: f.act_quant(X[:, :200]), ValueError, "multiple of 128; pad .*ragged"),
        (lambda: f.act_quant(np.float32(1)), ValueError, "shape \\(\\)"),
        (lambda: f.act_quant(X.astype(int)), TypeError, "x is int64.*astype"),
        (lambda: f.act_quant(X, 0), ValueError, "block_size=0; it counts.*pass 128"),
        (lambda: f.act_quant(X, 1.5), ValueError, "block_size=1.5"),
        (lambda: f.weight_quant(X[None]), ValueError, r"weights are \[N, K\]; pass w\[e\]"),
        (lambda: f.weight_dequant(B, Bs.T), ValueError, "pass s.T"),
        (lambda: f.weight_dequant(X, Bs), TypeError, "codes is float32.*weight_quant"),
        (lambda: matmul(A, B, As, Bs.T, BLOCK), ValueError, r"Bs has shape \(4, 3\).*pass Bs.T"),
        (lambda: native(A, B, As, Bs.T, BLOCK), ValueError, "as some texts.*pass Bs.T"),
        (lambda: matmul(A, B, As[:, :3], Bs, BLOCK), ValueError, r"As has shape \(8, 3\).*\(8, 4\)"),
        (lambda: matmul(A, B, As, Bs[:2], BLOCK), ValueError, r"Bs has shape \(2, 4\).*needs \(3, 4\)"),
        (lambda: matmul(A, B, As.reshape(-1), Bs, BLOCK), ValueError, r"As.reshape\(8, 4\)"),
        (lambda: matmul(A, B.T, As, Bs, BLOCK), ValueError, r"looks like \[K, N\], pass B.T"),
        (lambda: matmul(A, B[0], As, Bs, BLOCK), ValueError, r"B \[N, K\]"),
        (lambda: matmul(A, B, As, Bs, 128), ValueError, r"block_size=128.*pass \[128, 128\]"),
        (lambda: matmul(A, B, As, Bs, [128]), ValueError, "block_n, block_k"),
        (lambda: matmul(A, B, As, Bs, [128, 0]), ValueError, r"block_size\[1\]=0"),
        (lambda: matmul(X, B, As, Bs, BLOCK), TypeError, "A is float32; .*act_quant"),
        (lambda: matmul(A, B, As, Bs, BLOCK, np.int8), TypeError, "values are floats"),
        (lambda: matmul(FNUZ, B, As, Bs, BLOCK), TypeError, "e4m3fnuz"),
        (lambda: f.fp8_gemm(A, As, B, Bs.T), ValueError, "b_s has shape .*pass b_s.T"),
        (lambda: gemm(I8.astype(np.uint8), I8), TypeError, "a is uint8"),
        (lambda: gemm(I8, I8[:3]), ValueError, r"a is \[M, K\] and b \[K, N\]"),
        (lambda: gemm(np.ones((3, 5), np.int8), np.ones((4, 5), np.int8)), ValueError, "pass b.T"),
        (lambda: gemm(I8, I8, np.ones(3)), ValueError, r"scale_a has shape \(3,\).*\[M\]"),
        (lambda: gemm(I8, I8, 1, np.ones(3)), ValueError, r"scale_b.*\[N\]"),
        (lambda: f.quantize_int8(1.0, 0.0), ValueError, "scale is 0.0"),
        (lambda: f.quantize_int8(X, np.ones(7)), ValueError, "broadcast"),
        (lambda: f.quantize_fp8_e4m3("x", 1.0), TypeError, "no numbers"),
    ],
)  # fmt: skip
def test_each_failure_in_words(call, error, words):
    with pytest.raises(gq.GGMLQError, match=words) as caught:
        call()
    assert isinstance(caught.value, error)


def test_a_square_of_scales_is_not_accused(fresh):
    operands_ = operands(fresh, 3, 256, 256)
    assert f.w8a8_block_fp8_matmul(*operands_, BLOCK).shape == (3, 256)
    turned = [*operands_[:3], operands_[3].T]
    assert f.w8a8_block_fp8_matmul(*turned, BLOCK).shape == (3, 256)
