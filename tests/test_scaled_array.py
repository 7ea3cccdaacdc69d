"""ScaledArray as NumPy people meet it, and every option of quantize_scaled."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.codes.tiling import expanded, tiling
from ggmlq.errors import (
    BlockIndexError,
    CodeError,
    DTypeError,
    GGMLQError,
    NonFiniteError,
    ShapeError,
    UnsupportedError,
)  # fmt: skip

TILES = [(1, 128), (128, 128), (1, None), (None, None), (None, 64), (3, 64)]


def made(fresh, shape=(10, 256), code="e4m3", tile=(3, 64), **more):
    return gq.quantize_scaled(fresh.standard_normal(shape).astype(np.float32), code, tile, **more)


def by_hand(x, s):
    """The values of an array with scales, element by element."""
    over = tiling(s.tile, int(np.prod(s.shape[:-1])), s.shape[-1])
    codes = s.code.decode(s.codes).reshape(over.rows, over.columns)
    scales = s.scales if s.scale == "float32" else np.ldexp(1.0, s.scales.astype(int) - 127)
    zeros = np.zeros(over.shape) if s.zeros is None else s.zeros
    rows, columns = np.indices(codes.shape)
    at = rows // over.r, columns // over.c
    return ((codes - zeros[at].astype(np.float32)) * scales[at].astype(np.float32)).reshape(s.shape)


# --- the array ------------------------------------------------------------------------------


def test_what_it_says_of_itself(fresh):
    s = made(fresh)
    assert repr(s).startswith("<ScaledArray e4m3 (10, 256), tile (3, 64), scales float32 (4, 4), ")
    assert repr(s).endswith(", cpu>")
    assert (s.shape, s.ndim, len(s), s.device, s.scale, s.tile) == (
        (10, 256),
        2,
        10,
        "cpu",
        "float32",
        (3, 64),
    )
    assert s.nbytes == 10 * 256 + 4 * 4 * 4
    assert (s.T.shape, s.T.T) == ((256, 10), s)
    assert "zeros" in repr(made(fresh, code="uint8", zeros=True))
    assert s in [s]
    assert hash(s) != hash(s.copy())
    assert s != "something else"
    with pytest.raises(DTypeError, match=r"compare s\.codes"):
        _ = s == s.copy()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("code", ["e4m3", "uint8"])
def test_slices_are_the_rows_that_numpy_picks(tile, code, fresh):
    s = made(fresh, code=code, tile=tile, zeros=code == "uint8", ragged="pad")
    values = np.asarray(s)
    np.testing.assert_array_equal(values, by_hand(None, s))
    mask = fresh.random(10) < 0.5
    for index in (
        slice(None), slice(3, 9), slice(1, 8), slice(4, 5), slice(0, 0), slice(None, None, -1),
        4, -1, fresh.integers(-10, 10, 7), mask, (slice(2, 7), slice(None)), np.array([], int), [1, 2, 3],
        slice(6, 99), slice(1, 9, 3),
    ):  # fmt: skip
        part = s[index]
        np.testing.assert_array_equal(np.asarray(part), values[index])
        assert part.shape == values[index].shape
    assert np.shares_memory(s[3:9].codes, s.codes)
    assert [np.asarray(row).tolist() for row in s] == values.tolist()


def test_more_axes(fresh):
    s = made(fresh, (4, 3, 5, 64), tile=(7, 32))
    values = np.asarray(s)
    assert s.scales.shape == (9, 2)
    np.testing.assert_array_equal(values, by_hand(None, s))
    for index in (
        2,
        slice(1, 3),
        (1, 2),
        (slice(None), 1),
        (3, slice(None), 4),
        (0, slice(None), slice(None, None, 2)),
    ):
        np.testing.assert_array_equal(np.asarray(s[index]), values[index])
    one = made(fresh, (128,), tile=(1, 64))
    assert one.shape == (128,)
    assert one.scales.shape == (1, 2)
    with pytest.raises(BlockIndexError):
        iter(one).__next__()


@pytest.mark.parametrize(
    "index", [None, (..., 0), True, "a", (0, 0), (0, slice(1, 3)), 10, 1.5, np.zeros((2, 2), bool)]
)
def test_wrong_indices(index, fresh):
    with pytest.raises(BlockIndexError, match=r"its shape|rows are picked|cut between tiles"):
        made(fresh)[index]


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_copies_pickles_and_moves(order, fresh):
    s = made(fresh, code="uint8", zeros=True, order=order)
    for other in (s.copy(), copy.copy(s), copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
        assert (other.code, other.tile, other.shape) == (s.code, s.tile, s.shape)
        for a, b in zip(s.parts(), other.parts(), strict=True):
            np.testing.assert_array_equal(a, b)
            assert not np.shares_memory(a, b)
    assert s.copy().scales.strides == s.scales.strides
    assert s.to("cpu") is s
    assert not s.codes.flags.writeable
    editable = s.copy()
    editable.codes[0, 0] ^= 1
    assert editable.codes[0, 0] != s.codes[0, 0]


def test_parts_are_plain_arrays(fresh):
    s = made(fresh, code="int8")
    assert np.from_dlpack(s.copy().codes).dtype == np.int8
    assert np.from_dlpack(s.copy().scales).shape == s.scales.shape
    assert memoryview(s.codes).shape == s.shape


@pytest.mark.slow
@pytest.mark.parametrize("code", ["e4m3", "e5m2", "int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_in_every_dtype(code, dtype, fresh):
    s = made(fresh, (300, 900), code, (7, 90), zeros=code in ("uint8", "uint16"))  # enough to be compiled
    found = s.dequantize(dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, by_hand(None, s).astype(np.float32).astype(dtype))
    np.testing.assert_array_equal(s[:3].dequantize(dtype), found[:3])


def test_numpy_asks_for_values(fresh):
    s = made(fresh)
    assert np.asarray(s, np.float64).dtype == np.float64
    assert np.array(s).shape == s.shape
    with pytest.raises(GGMLQError, match="copy=False"):
        np.array(s, copy=False)
    with pytest.raises(DTypeError):
        s.dequantize(np.int32)
    x = fresh.standard_normal((2, 256)).astype(np.float32)
    np.testing.assert_allclose(x @ s.T, x @ np.asarray(s).T, rtol=0.2, atol=3)
    for wrong in (lambda: s @ s, lambda: x @ s, lambda: s.T @ x, lambda: s @ x):
        with pytest.raises(ShapeError, match=r"\.T"):
            wrong()


def test_floats_of_ml_dtypes_are_codes(fresh):
    x = fresh.standard_normal((4, 64)).astype(np.float32)
    for name, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        codes = x.astype(dtype)
        s = gq.ScaledArray(codes, np.float32(2), name, (None, None))
        assert np.shares_memory(s.codes, codes)
        np.testing.assert_array_equal(np.asarray(s), codes.astype(np.float32) * 2)
        with pytest.raises(DTypeError):
            gq.ScaledArray(codes, np.float32(2), "int8", (None, None))
    scales = np.array([[0.5], [1], [2], [4]], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    s = gq.ScaledArray(x.astype(np.int8), scales, "int8", (1, None))
    assert s.scale == "e8m0"
    np.testing.assert_array_equal(np.asarray(s), x.astype(np.int8) * scales.astype(np.float32))


def test_wrong_parts_are_told():
    codes = np.zeros((4, 256), np.uint8)
    good = np.ones((4, 2), np.float32)
    gq.ScaledArray(codes, good, "e4m3", (1, 128))
    for args, error, words in (
        ((codes, good[:3], "e4m3", (1, 128)), ShapeError, "need (4, 2)"),
        ((codes, good.T, "e4m3", (1, 128)), ShapeError, "transposed"),
        ((codes, good.reshape(-1), "e4m3", (1, 128)), ShapeError, "reshape"),
        ((codes, good.astype(np.float64), "e4m3", (1, 128)), DTypeError, "astype"),
        ((codes.astype(np.int16), good, "e4m3", (1, 128)), DTypeError, "codes of uint8"),
        ((codes, good, "e8m0", (1, 128)), CodeError, "for scales"),
        ((codes, good, "e4m3", (1, 0)), ShapeError, "positive"),
        ((codes, good, "e4m3", 128), ShapeError, "tile"),
        ((codes, good, "e4m3", (1, 128), np.zeros((4, 2), int)), CodeError, "zero of their own"),
        ((codes, good, "uint8", (1, 128), np.zeros((4, 2))), DTypeError, "integer"),
        ((codes, good, "uint8", (1, 128), np.full((4, 2), 256)), CodeError, "clip"),
        ((np.uint8(3), np.float32(1), "e4m3", (1, 1)), ShapeError, "1-D"),
    ):
        with pytest.raises(error) as caught:
            gq.ScaledArray(*args)
        assert words in str(caught.value), caught.value


# --- quantizing -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 128), (2, 1, 2, 128), (0, 128), (3, 0)])
def test_the_rule_on_every_shape_and_dtype(dtype, shape, fresh):
    x = fresh.standard_normal(shape).astype(dtype)
    s = gq.quantize_scaled(x, "e4m3", (1, 128))
    assert s.shape == shape
    groups = x.astype(np.float32).reshape(-1, 128) if x.size else np.zeros((0, 128), np.float32)
    amax = np.abs(groups).max(axis=1, initial=0)
    np.testing.assert_array_equal(
        s.scales.reshape(-1)[: len(amax)], np.maximum(amax, np.float32(1e-10)) / np.float32(448)
    )
    wanted = (groups / s.scales.reshape(-1)[: len(amax), None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(s.codes.reshape(wanted.shape), wanted)


def test_zeros_infinities_and_nan():
    x = np.float32([[0, 0, 0, 0], [1, np.nan, 2, -4], [1, np.inf, -np.inf, 0]])
    s = gq.quantize_scaled(x, "e4m3", (1, 4))
    values = np.asarray(s)
    assert (values[0] == 0).all()
    np.testing.assert_array_equal(np.isnan(values[1]), [False, True, False, False])
    assert np.isinf(s.scales[2, 0])
    assert gq.codes["e4m3"].decode(s.codes)[2, [0, 3]].tolist() == [0, 0]
    exact = gq.quantize_scaled(x[:1], "e4m3", (1, 4), eps=0)
    assert exact.scales.item() == 0
    assert np.isnan(np.asarray(exact)).all()
    with pytest.raises(NonFiniteError, match=r"x\[1, 1\] is nan"):
        gq.quantize_scaled(x, "e4m3", (1, 4), check_finite=True)


@pytest.mark.parametrize("code", ["int8_full", "uint8"])
@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
def test_nan_gets_the_code_of_zero_under_given_scales(code, rounding, fresh):
    x = fresh.normal(3, 1, (4, 256)).astype(np.float32)
    how = {"zeros": True, "rounding": rounding}
    scales = gq.quantize_scaled(x, code, (1, 128), **how).scales
    x[:, ::7] = np.nan
    s = gq.quantize_scaled(x, code, (1, 128), scales=scales, **how)
    assert np.array_equal(s.codes[:, ::7], np.repeat(s.zeros, 128, 1)[:, ::7])
    assert not np.asarray(s)[:, ::7].any()
    assert np.isnan(np.asarray(gq.quantize_scaled(x, code, (1, 128), **how))).all()  # nothing is lost unseen


def test_zero_points(fresh):
    x = fresh.uniform(3, 5, (6, 64)).astype(np.float32)  # 0 is in range all the same
    for code in ("uint8", "int8_full", "uint16"):
        s = gq.quantize_scaled(x, code, (1, None), zeros=True)
        low, high = gq.codes[code].min, gq.codes[code].max
        np.testing.assert_array_equal(s.scales[:, 0], x.max(axis=1) / np.float32(high - low))
        assert (s.zeros == low).all()
        assert np.abs(np.asarray(s) - x).max() <= s.scales.max() * 0.51
    relu = np.maximum(fresh.standard_normal((6, 64)), -0.5).astype(np.float32)
    s = gq.quantize_scaled(relu, "int8_full", (1, None), zeros=True)
    assert np.abs(np.asarray(s) - relu).max() <= s.scales.max()
    for code in ("int8", "e4m3"):
        with pytest.raises(CodeError, match="int8_full"):
            gq.quantize_scaled(relu, code, (1, None), zeros=True)


def test_scales_of_powers_of_two_are_rounded_up(fresh):
    x = fresh.standard_normal((9, 256)).astype(np.float32)
    plain, power = (gq.quantize_scaled(x, "e4m3", (1, 128), scale=s) for s in ("float32", "e8m0"))
    values = gq.codes["e8m0"].decode(power.scales)
    assert power.scales.dtype == np.uint8
    assert ((values >= plain.scales) & (values < 2 * plain.scales)).all()
    np.testing.assert_array_equal(np.asarray(power), by_hand(None, power))


@pytest.mark.parametrize("zeros", [False, True])
def test_scales_in_columns(zeros, fresh):
    x = fresh.standard_normal((5, 384)).astype(np.float32)
    rows = gq.quantize_scaled(x, "uint8", (1, 128), zeros=zeros)
    columns = gq.quantize_scaled(x, "uint8", (1, 128), zeros=zeros, order="columns")
    for a, b in zip(rows.parts(), columns.parts(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert columns.scales.strides == (4, 32)
    if not zeros:
        y = np.asarray(gq.scaled_linear(columns, rows))
        np.testing.assert_array_equal(y, gq.scaled_linear(rows, rows))


def test_given_scales(fresh):
    x = fresh.standard_normal((2, 3, 256)).astype(np.float32)
    usual = gq.quantize_scaled(x, "int8", (1, 128))
    for scales in (usual.scales, usual.scales.reshape(2, 3, 2), usual.scales.astype(np.float64)):
        again = gq.quantize_scaled(x, "int8", (1, 128), scales=scales)
        np.testing.assert_array_equal(again.codes, usual.codes)
    fixed = gq.quantize_scaled(x, "int8", (None, None), scales=0.01)
    np.testing.assert_array_equal(fixed.codes, gq.codes["int8"].encode(x / np.float32(0.01)))
    assert fixed.scales.shape == (1, 1)
    with pytest.raises(ShapeError, match="one a tile"):
        gq.quantize_scaled(x, "int8", (1, 128), scales=np.ones(5, np.float32))
    with pytest.raises(DTypeError, match="e8m0"):
        gq.quantize_scaled(x, "int8", (1, 128), scales=np.ones((6, 2), np.uint8))
    power = gq.quantize_scaled(x, "int8", (1, 128), scales=np.full((6, 2), 0.03), scale="e8m0")
    assert (gq.codes["e8m0"].decode(power.scales) == np.float32(2.0**-5)).all()


def test_ragged_rows(fresh):
    x = fresh.standard_normal((130, 200)).astype(np.float32)
    with pytest.raises(ShapeError, match="pad the last axis to 256"):
        gq.quantize_scaled(x, "e4m3", (1, 128))
    s = gq.quantize_scaled(x, "e4m3", (128, 128), ragged="pad")
    assert s.scales.shape == (2, 2)
    assert s.scales[1, 1] == np.abs(x[128:, 128:]).max() / np.float32(448)
    np.testing.assert_array_equal(np.asarray(s), by_hand(None, s))


def test_properties_of_scaling(fresh):
    x = fresh.standard_normal((4, 256)).astype(np.float32)
    a, b = (gq.quantize_scaled(v, "e4m3", (1, 128)) for v in (x, x * np.float32(2.0**9)))
    np.testing.assert_array_equal(a.codes, b.codes)
    np.testing.assert_array_equal(a.scales * 512, b.scales)
    order = fresh.permutation(4)
    np.testing.assert_array_equal(gq.quantize_scaled(x[order], "e4m3", (1, 128)).codes, a.codes[order])
    wide = expanded(np, a.scales, a.tiling)
    assert wide.shape == x.shape


def test_wrong_requests_are_told(fresh):
    x = fresh.standard_normal((4, 128)).astype(np.float32)
    for args, more, error in (
        ((x, "e4m3", (1, 128)), {"scale": "float16"}, UnsupportedError),
        ((x, "e4m3", (1, 128)), {"order": "diagonal"}, UnsupportedError),
        ((x, "e4m3", (1, 128)), {"rounding": "half_away"}, UnsupportedError),
        ((x, "e4m3", (1, 128)), {"ragged": "maybe"}, UnsupportedError),
        ((x, "e4m3", (1, 128)), {"eps": -1}, ShapeError),
        ((x, "e8m0", (1, 128)), {}, CodeError),
        ((x, "e4m4", (1, 128)), {}, CodeError),
        ((x, "e4m3", (1, -128)), {}, ShapeError),
        ((x.astype(int), "e4m3", (1, 128)), {}, DTypeError),
        ((np.float32(1), "e4m3", (1, 128)), {}, ShapeError),
        ((gq.quantize_scaled(x, "e4m3"), "e4m3", (1, 128)), {}, DTypeError),
        ((np.ma.masked_array(x, x > 0), "e4m3", (1, 128)), {}, GGMLQError),
    ):
        with pytest.raises(error):
            gq.quantize_scaled(*args, **more)


@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0,), (2, 0, 0), (0, 5)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_empty_decodes_to_nothing(shape, dtype):
    s = gq.quantize_scaled(np.zeros(shape, np.float32), "e4m3", (1, 128), ragged="pad")
    assert s.dequantize(dtype).shape == shape
    assert s.dequantize(dtype).dtype == dtype
