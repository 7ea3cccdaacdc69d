"""Decoding: ggml's float32 to the bit (-0.0 equals 0.0), on encoded data and on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from block_cases import BLOCKS, assert_same_values
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS

DECODED = [fmt for fmt in FORMATS.values() if fmt.name in ("f16", "bf16")] + [
    fmt
    for fmt in BLOCKS
    if fmt.name != "q8_1"  # ggml has no decoder for it
]
IN_GGUF_PY = [
    fmt for fmt in DECODED
    if fmt.name not in ("q8_K", "q1_0", "q2_0")  # it has no decoder for these
]  # fmt: skip


def by_name(fmt):
    return fmt.name


@pytest.mark.parametrize("kind", ["uniform", "normal", "edges", "random"])
@pytest.mark.parametrize("fmt", DECODED, ids=by_name)
def test_golden(fmt, kind, golden):
    data = golden(fmt.name)
    blocks = data[f"{kind}/blocks"].view(fmt.dtype)
    assert_same_values(fmt.decode(blocks), data[f"{kind}/values"], fmt, blocks)


@pytest.mark.parametrize("fmt", IN_GGUF_PY, ids=by_name)
def test_gguf_py_on_random_bytes(fmt):
    blocks = random_blocks(fmt, 16, 16, seed=100 + fmt.id)
    raw = blocks.view(np.uint8).reshape(16, -1)
    with np.errstate(over="ignore"):  # 2**126 * 12 is infinite, in ggml too
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.id))
    assert_same_values(fmt.decode(blocks), want, fmt, blocks)


@pytest.mark.llama
@pytest.mark.parametrize("fmt", DECODED, ids=by_name)
def test_libggml_on_random_bytes(fmt, libggml):
    blocks = random_blocks(fmt, 64, 16, seed=200 + fmt.id)
    want = libggml.dequantize(blocks.view(np.uint8).reshape(64, -1), fmt)
    assert_same_values(fmt.decode(blocks), want, fmt, blocks)


@pytest.mark.llama
@pytest.mark.parametrize("fmt", DECODED, ids=by_name)
def test_libggml_on_any_bytes(fmt, libggml):
    """NaN and infinite scales too: damaged data decodes to what ggml makes of it."""
    raw = np.random.default_rng(fmt.id).integers(0, 256, (64, 4 * fmt.dtype.itemsize), np.uint8)
    blocks = raw.view(fmt.dtype)
    assert_same_values(fmt.decode(blocks), libggml.dequantize(raw, fmt), fmt, blocks)


@pytest.mark.parametrize("fmt", BLOCKS, ids=by_name)
def test_values_are_scale_times_code_minus_offset(fmt):
    """The identity that everything else stands on, with q8_1 among the rest."""
    blocks = random_blocks(fmt, 3, 5, seed=fmt.id)
    codes, scale, offset = fmt.unpack(blocks)
    assert codes.dtype == np.int8
    wide = codes.astype(np.float64).reshape(3, 5, -1, fmt.group) * scale[..., None]
    if offset is not None:
        wide -= offset[..., None]
    got = fmt.decode(blocks).reshape(wide.shape)
    assert np.allclose(got, wide, rtol=1e-6, atol=1e-6 * np.abs(wide).max())
    assert fmt.has_offset is (offset is not None)


@pytest.mark.parametrize("fmt", BLOCKS, ids=by_name)
def test_every_stored_code_occurs(fmt):
    """Random bytes reach the whole range: code + zero counts from 0 for the linear formats."""
    codes = fmt.unpack(random_blocks(fmt, 8, 64, seed=1)).codes
    levels = np.unique(codes)
    linear = {"q2_0": 4, "q4_0": 16, "q4_1": 16, "q5_0": 32, "q5_1": 32, "q2_K": 4, "q3_K": 8,
              "q4_K": 16, "q5_K": 32, "q6_K": 64, "tq2_0": 4, "tq1_0": 3}  # fmt: skip
    if fmt.name in linear:
        assert (levels + fmt.zero).tolist() == list(range(linear[fmt.name]))
    else:
        assert fmt.zero == 0


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "iq3_s", "mxfp4", "f16"])
def test_shapes_survive(name):
    fmt = FORMATS[name]
    blocks = random_blocks(fmt, 6, 4)
    flat = fmt.decode(blocks)
    assert flat.shape == (6, 4 * fmt.block_size)
    assert np.array_equal(fmt.decode(blocks.reshape(2, 3, 4)), flat.reshape(2, 3, -1))
    assert np.array_equal(fmt.decode(blocks[::2]), flat[::2])
    assert fmt.decode(blocks[:0]).shape == (0, 4 * fmt.block_size)
    assert fmt.decode(blocks[:, :0]).shape == (6, 0)


@pytest.mark.parametrize(
    "name", [f.name for f in BLOCKS if any(f.dtype[n].kind == "f" for n in f.dtype.names)]
)
def test_invalid_finds_damaged_scales(name):
    fmt = FORMATS[name]
    blocks = random_blocks(fmt, 2, 3)
    assert not fmt.invalid(blocks).any()
    field = next(n for n in fmt.dtype.names if fmt.dtype[n].kind == "f")
    blocks[field][1, 2] = np.inf
    blocks[field][0, 1] = np.nan
    assert np.argwhere(fmt.invalid(blocks)).tolist() == [[0, 1], [1, 2]]


def test_invalid_finds_scales_that_are_not_floats():
    mxfp4, iq1_m = FORMATS["mxfp4"], FORMATS["iq1_m"]
    blocks = random_blocks(mxfp4, 1, 2)
    blocks["e"][0, 1] = 255
    assert mxfp4.invalid(blocks).tolist() == [[False, True]]
    blocks = random_blocks(iq1_m, 1, 2)
    blocks["scales"][0, 0] |= 0xF0  # every nibble of d, its exponent too
    blocks["scales"][0, 0, 1::2] = 0xF0
    assert iq1_m.invalid(blocks).tolist() == [[True, False]]


def test_scalars_keep_their_values():
    ints = np.array([-(2**53) - 1, 7], np.int64)
    q = gq.QuantArray.from_bytes(ints, "i64", (2,))
    assert q.dequantize(np.float64).tolist() == [-(2.0**53), 7.0]
    doubles = np.array([1 / 3, 1e300])
    q = gq.QuantArray.from_bytes(doubles, "f64", (2,))
    assert q.dequantize(np.float64).tolist() == doubles.tolist()
    assert q.dequantize().tolist() == [np.float32(1 / 3), np.inf]


@given(hnp.arrays(np.uint16, 64, elements=st.integers(0, 65535)))
def test_halves_and_bfloats_decode_as_bits(bits):
    assert np.array_equal(
        FORMATS["f16"].decode(bits.view(np.float16)), bits.view(np.float16).astype(np.float32), equal_nan=True
    )
    assert np.array_equal(FORMATS["bf16"].decode(bits).view(np.uint32) >> 16, bits)
