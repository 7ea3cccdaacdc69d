"""Mistakes of other people's kernels, as public reports describe them: `gq.check` must name each.

All are rebuilt here in NumPy from the reports' words, with nothing of the code that they are about.
"""

from __future__ import annotations

import numpy as np
import planted
import pytest

import ggmlq as gq

F = np.float32


def half(blocks, at):
    return blocks[:, at : at + 2].copy().view(np.float16).astype(F)


def right(blocks, name, shape):
    return gq.QuantArray.from_bytes(blocks, name, shape).dequantize()


# --- decoders -------------------------------------------------------------------------------------


def iq3_s_grid_with_62_for_60(blocks, name, shape):
    """Of vllm-gguf-plugin, #129: 150 bytes of a grid that is four times ggml's hold 62 for 60."""

    def wrong(grid):
        grid = grid.copy()
        at = np.flatnonzero(grid == 15)[:150]
        grid.reshape(-1)[at] = 15.5
        return grid

    return planted.iq3_s(blocks.reshape(-1, 110), grids=wrong).reshape(shape).astype(F)


def mxfp4_values_not_doubled(blocks, name, shape):
    """Of tinygrad, #14866: the values of e2m1 beside a scale that is meant for twice of them."""
    return right(blocks, name, shape) / 2


def q2_k_four_codes_of_a_byte_are_neighbours(blocks, name, shape):
    """Of aprender, #1924: 16 runs that read 4 bytes each, so scales meet the wrong codes."""
    b = blocks.reshape(-1, 84)
    codes = (b[:, 16:80, None] >> np.array([0, 2, 4, 6]) & 3).reshape(-1, 16, 16)
    scale, low = half(b, 80) * (b[:, :16] & 15), half(b, 82) * (b[:, :16] >> 4)
    return (codes * scale[..., None] - low[..., None]).reshape(shape)


def q6_k_a_quarter_is_written(blocks, name, shape):
    """Of 1bit-MONSTER, #734: only the first 32 of each 128 values are ever written."""
    values = right(blocks, name, shape).reshape(-1, 128).copy()
    values[:, 32:] = 0
    return values.reshape(shape)


def q4_k_half_as_bfloat16(blocks, name, shape):
    """Of 1bit-MONSTER, #473: d and dmin widened as if they were bfloat16."""
    b = blocks.reshape(-1, 144)
    words = b[:, :4].copy().view(np.uint16).astype(np.uint32) << 16
    parts = gq.formats[name].unpack(b.copy().view(gq.formats[name].dtype).reshape(-1))
    with np.errstate(all="ignore"):
        ratio = words.view(F) / b[:, :4].copy().view(np.float16).astype(F)
        scale, low = parts.scale * ratio[:, :1], parts.offset * ratio[:, 1:]
        return (parts.codes.reshape(-1, 8, 32) * scale[..., None] - low[..., None]).reshape(shape)


def q3_k_scales_of_four_bits(blocks, name, shape):
    """Of aprender, #2115: 16 scales of 4 bits less 8, from 8 of the 12 bytes."""
    b = blocks.reshape(-1, 110)
    parts = gq.formats[name].unpack(b.copy().view(gq.formats[name].dtype).reshape(-1))
    packed = b[:, 96:104]
    scales = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, 16).astype(F) - 8
    return (parts.codes.reshape(-1, 16, 16) * (half(b, 108) * scales)[..., None]).reshape(shape)


def q4_1_codes_begin_two_bytes_early(blocks, name, shape):
    """Of mlx, #3664: the header of q4_0 is skipped, two bytes of the four of q4_1."""
    b = blocks.reshape(-1, 20)
    codes = np.concatenate([b[:, 2:18] & 15, b[:, 2:18] >> 4], axis=1)
    return (codes * half(b, 0) + half(b, 2)).reshape(shape)


def iq1_s_grid_of_512_rows(blocks, name, shape):
    """Of llama-cpp-torch, #4: a grid of 512 rows, where ggml's has 2048."""
    return planted.iq1_s(blocks.reshape(-1, 50), row=lambda rows: rows & 511).reshape(shape).astype(F)


def nvfp4_subnormals_as_normal(blocks, name, shape):
    """Of b12x, #388: the formula of normal numbers where the exponent of the scale is 0."""
    wrong = lambda v: np.where(v == 127, 0, np.ldexp(1 + (v & 7) / 8, (v >> 3 & 15) - 8))
    return planted.nvfp4(blocks.reshape(-1, 36), power=wrong).reshape(shape).astype(F)


def mxfp4_small_exponents_are_zero(blocks, name, shape):
    """Of 1Cat-vLLM, #222: scales below the least normal half become zero."""
    wrong = lambda v: np.where(v < 113, 0, np.ldexp(1.0, v - 128))
    return planted.mxfp4(blocks.reshape(-1, 17), power=wrong).reshape(shape).astype(F)


def q8_0_subnormal_scales_are_zero(blocks, name, shape):
    """Of surogate, #162: subnormal halves become zero."""
    b = blocks.reshape(-1, 34)
    d = half(b, 0)
    d[np.abs(d) < 2.0**-14] = 0
    return (b[:, 2:].view(np.int8) * d).reshape(shape)


def q5_0_high_bits_of_the_other_half(blocks, name, shape):
    """Of aprender, #1621: the fifth bits of the two halves of a block are exchanged."""
    b = blocks.reshape(-1, 22)
    low = np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], axis=1)
    high = np.roll(np.unpackbits(b[:, 2:6], axis=1, bitorder="little"), 16, axis=1)
    return ((low | high << 4).astype(F) * half(b, 0) - 16 * half(b, 0)).reshape(shape)


DECODERS = [
    (iq3_s_grid_with_62_for_60, "iq3_s", "code-book"),
    (mxfp4_values_not_doubled, "mxfp4", "exponent-bias"),
    (q2_k_four_codes_of_a_byte_are_neighbours, "q2_K", "nibble-order"),
    (q6_k_a_quarter_is_written, "q6_K", "unwritten"),
    pytest.param(q4_k_half_as_bfloat16, "q4_K", "scale-misread", marks=pytest.mark.slow),
    pytest.param(q3_k_scales_of_four_bits, "q3_K", "sub-scale-unpack", marks=pytest.mark.slow),
    (q4_1_codes_begin_two_bytes_early, "q4_1", "codes-misread"),
    (iq1_s_grid_of_512_rows, "iq1_s", "high-bits"),
    (nvfp4_subnormals_as_normal, "nvfp4", "exponent-bias"),
    (mxfp4_small_exponents_are_zero, "mxfp4", "exponent-bias"),
    (q8_0_subnormal_scales_are_zero, "q8_0", "scale-misread"),
    (q5_0_high_bits_of_the_other_half, "q5_0", "high-bits"),
]


@pytest.mark.parametrize(("f", "name", "fault"), DECODERS, ids=lambda f: getattr(f, "__name__", ""))
def test_decoders(f, name, fault):
    report = gq.check(f, formats=name)
    assert not report.ok
    assert report.faults[0].fault == fault, str(report)


# --- encoders -------------------------------------------------------------------------------------


def codes_of_q4_0(x):
    x = x.reshape(-1, 32)
    d = (np.abs(x).max(axis=1, keepdims=True) / 7).astype(np.float16)
    with np.errstate(all="ignore"):
        return d, np.where(d > 0, np.clip(np.rint(x / d.astype(F)), -8, 7), 0).astype(np.int8)


def packed(d, low, high):
    return np.concatenate([d.view(np.uint8), (low & 15 | (high & 15) << 4).astype(np.uint8)], axis=1)


def neighbours_share_a_byte(x, name):
    """Of 1bit-MONSTER, #572, the first half: elements 2j and 2j + 1 in byte j."""
    d, q = codes_of_q4_0(x)
    return packed(d, q[:, ::2] + 8, q[:, 1::2] + 8)


def twos_complement(x, name):
    """Of 1bit-MONSTER, #572, the second half: codes without the 8 that is added."""
    d, q = codes_of_q4_0(x)
    return packed(d, q[:, :16], q[:, 16:])


def negatives_cut_off(x, name):
    """Of 1bit-MONSTER, #704: codes from -7 to 7 clipped to 0 … 15."""
    d, q = codes_of_q4_0(x)
    q = np.clip(q, 0, 15)
    return packed(d, q[:, :16], q[:, 16:])


@pytest.mark.parametrize(
    ("f", "fault"),
    [
        (neighbours_share_a_byte, "nibble-order"),
        (twos_complement, "offset-missing"),
        (negatives_cut_off, "encode-error"),
    ],
)
def test_encoders(f, fault):
    report = gq.check(f, "quantize", formats="q4_0")
    assert report.faults[0].fault == fault, str(report)


# --- products -------------------------------------------------------------------------------------


def split_nibbles_taken_for_interleaved(x, blocks, name, shape):
    """Of imp, #722: codes of q4_0 in the order of a layout that has neighbours in a byte."""
    w = right(blocks, name, shape).reshape(*shape[:1], -1, 2, 16).swapaxes(-1, -2).reshape(shape)
    return x @ w.T


def an_odd_last_block_is_left_out(x, blocks, name, shape):
    """Of llama.cpp, #29131: two blocks a step, so an odd last one is never multiplied."""
    k = shape[1] // 64 * 64
    return x[:, :k] @ right(blocks, name, shape)[:, :k].T


def half_of_the_last_block_is_left_out(x, blocks, name, shape):
    """Of llama.cpp, #25455: half of a block of q5_K is dropped."""
    k = shape[1] - 128
    return x[:, :k] @ right(blocks, name, shape)[:, :k].T


def transposed(x, blocks, name, shape):
    """Of mlx, #3480, candle #3744: the result lies with its axes exchanged."""
    y = x @ right(blocks, name, shape).T
    return np.ascontiguousarray(y.T).reshape(y.shape)


def zeros(x, blocks, name, shape):
    """Of KernelBench, #165: a kernel that gives zeros passes a test by cosine or by a wide tolerance."""
    return np.zeros((len(x), shape[0]), F)


PRODUCTS = [
    (split_nibbles_taken_for_interleaved, "q4_0", "nibble-order"),
    (an_odd_last_block_is_left_out, "iq4_nl", "k-tail-dropped"),
    (half_of_the_last_block_is_left_out, "q5_K", "k-tail-dropped"),
    (transposed, "q8_0", "transposed"),
    (zeros, "q4_K", "unwritten"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("f", "name", "fault"), PRODUCTS, ids=lambda f: getattr(f, "__name__", ""))
def test_products(f, name, fault):
    report = gq.check(f, "linear", formats=name)
    assert fault in [found.fault for found in report.faults], str(report)
