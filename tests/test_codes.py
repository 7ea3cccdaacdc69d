"""What a code means: atoms, the same compiled, whole arrays and ml_dtypes, on every code and boundary."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.codes import CODES
from ggmlq.cpu.atoms import verb
from ggmlq.errors import CodeError, DTypeError, UnsupportedError

FLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
INTEGERS = ("int8", "int8_full", "uint8", "int16", "uint16")


def up(x):
    return np.nextafter(np.float32(x), np.float32(np.inf))


def down(x):
    return np.nextafter(np.float32(x), np.float32(-np.inf))


NAN, INF = float("nan"), float("inf")
# input: e4m3 as it is, e4m3 saturated, e5m2 as it is, e5m2 saturated; "nan" is any NaN
BOUNDARIES = [
    (448, 0x7E, 0x7E, 0x5F, 0x5F),
    (464, 0x7E, 0x7E, 0x5F, 0x5F),
    (up(464), "nan", 0x7E, 0x5F, 0x5F),
    (480, "nan", 0x7E, 0x60, 0x60),
    (57344, "nan", 0x7E, 0x7B, 0x7B),
    (down(61440), "nan", 0x7E, 0x7B, 0x7B),
    (61440, "nan", 0x7E, 0x7C, 0x7B),
    (1e38, "nan", 0x7E, 0x7C, 0x7B),
    (INF, "nan", 0x7E, 0x7C, 0x7B),
    (-INF, "nan", 0xFE, 0xFC, 0xFB),
    (NAN, "nan", "nan", "nan", "nan"),
    (2.0**-10, 0x00, 0x00, 0x14, 0x14),
    (up(2.0**-10), 0x01, 0x01, 0x14, 0x14),
    (3 * 2.0**-10, 0x02, 0x02, 0x1A, 0x1A),
    (2.0**-6 - 2.0**-10, 0x08, 0x08, 0x24, 0x24),
    (17, 0x58, 0x58, 0x4C, 0x4C),
    (18, 0x59, 0x59, 0x4C, 0x4C),
    (19, 0x5A, 0x5A, 0x4D, 0x4D),
    (-0.0, 0x80, 0x80, 0x80, 0x80),
]


def is_nan(name, code):
    return np.isnan(CODES[name].decode(np.uint8([code])))[0]


@pytest.mark.parametrize("row", BOUNDARIES, ids=lambda row: str(row[0]))
def test_the_boundaries_of_floats(row):
    x = np.float32([row[0]])
    for column, (name, saturate) in enumerate(
        [("e4m3", False), ("e4m3", True), ("e5m2", False), ("e5m2", True)]
    ):
        code = int(CODES[name].encode(x, saturate=saturate)[0])
        wanted = row[1 + column]
        assert is_nan(name, code) if wanted == "nan" else code == wanted, (name, saturate, hex(code))
        atom = CODES[name].to_code(int(x.view(np.uint32)[0]), saturate)
        assert atom == code or (is_nan(name, atom) and wanted == "nan")


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_code_is_that_of_ml_dtypes(name):
    codes, compiled = np.arange(256, dtype=np.uint8), verb(CODES[name].value)
    wanted = codes.view(FLOATS[name]).astype(np.float32)
    for values in (
        CODES[name].decode(codes), CODES[name].table,
        np.float32([CODES[name].value(c) for c in range(256)]), np.float32([compiled(c) for c in range(256)]),
    ):  # fmt: skip
        np.testing.assert_array_equal(values, wanted)
        assert (np.signbit(values) == np.signbit(wanted))[~np.isnan(wanted)].all()


def interesting(name, fresh, count):
    """Random patterns, every code, the middles between, and neighbours of these."""
    values = np.sort(CODES[name].table[np.isfinite(CODES[name].table)])
    edges = np.concatenate([values, (values[1:].astype(np.float64) + values[:-1]) / 2]).astype(np.float32)
    near = (edges.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)).reshape(-1).view(np.float32)
    wild = fresh.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    usual = (fresh.standard_normal(count) * 2.0 ** fresh.integers(-20, 20, count)).astype(np.float32)
    return np.concatenate([near, wild, usual])


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_encoded_as_ml_dtypes_does(name, fresh):
    x, code = interesting(name, fresh, 1 << 20), CODES[name]
    with np.errstate(all="ignore"):
        wanted = x.astype(FLOATS[name]).view(np.uint8)
        clipped = np.clip(x, -code.max, code.max).astype(FLOATS[name]).view(np.uint8)
    for found, theirs in ((code.encode(x, saturate=False), wanted), (code.encode(x), clipped)):
        both = np.isnan(code.decode(found)) & np.isnan(code.decode(theirs))
        bad = np.flatnonzero((found != theirs) & ~both)
        assert not bad.size, [(x[i].item().hex(), found[i], theirs[i]) for i in bad[:5]]


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e8m0"])
def test_atoms_of_floats_say_what_whole_arrays_do(name, fresh):
    code = CODES[name]
    x = fresh.integers(0, 1 << 32, 3000, np.uint32).view(np.float32)
    if name != "e8m0":
        x = np.concatenate([x, fresh.permutation(interesting(name, fresh, 0))[:2000]])
    compiled, bits = verb(code.to_code), x.view(np.uint32).tolist()
    for saturate in (True, False):
        whole = code.encode(x, saturate=saturate)
        assert [code.to_code(b, saturate) for b in bits] == whole.tolist()
        assert [compiled(b, saturate) for b in bits] == whole.tolist()


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
def test_integers_round_and_stay_in_range(name, rounding, fresh):
    code, away = CODES[name], rounding == "half_away"
    x = fresh.uniform(code.min - 10, code.max + 10, 2000).astype(np.float32)
    x = np.concatenate(
        [x, np.rint(x) + np.float32(0.5), [np.nan, np.inf, -np.inf, 0.5, -0.5, 1.5, -2.5, 1e30]]
    )
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    whole = np.copysign(np.floor(np.abs(wide) + 0.5), wide) if away else np.rint(wide)
    wanted = np.clip(np.where(np.isnan(wide), 0, whole), code.min, code.max).astype(code.dtype)
    np.testing.assert_array_equal(code.encode(x, rounding=rounding), wanted)
    compiled = verb(code.to_code)
    assert [code.to_code(v, away) for v in x] == wanted.tolist()
    assert [compiled(v, away) for v in x] == wanted.tolist()
    np.testing.assert_array_equal(code.decode(wanted), wanted.astype(np.float32))


def test_e8m0_is_rounded_up_and_never_left():
    code = CODES["e8m0"]
    x = np.float32([1, up(1), down(1), 2.0**-127, 2.0**-149, 0, -0.0, 2.0**127, 3e38, INF, NAN, -1])
    assert code.encode(x).tolist() == [127, 128, 127, 1, 1, 1, 1, 254, 254, 255, 255, 255]
    powers = code.decode(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(
        powers, np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype("f4")
    )


def test_the_integers_that_e4m3_has():
    whole = np.arange(449, dtype=np.float32)
    exact = CODES["e4m3"].decode(CODES["e4m3"].encode(whole)) == whole
    assert exact.sum() == 55
    assert np.flatnonzero(~exact)[:5].tolist() == [17, 19, 21, 23, 25]


def test_names_and_what_is_said_of_wrong_ones():
    assert gq.codes["E4M3"] is gq.codes["float8_e4m3fn"] is gq.codes[gq.codes["e4m3"]]
    assert list(gq.codes) == ["e4m3", "e5m2", "int8", "int8_full", "uint8", "int16", "uint16", "e8m0"]
    assert pickle.loads(pickle.dumps(gq.codes["e5m2"])) is gq.codes["e5m2"]
    with pytest.raises(CodeError, match="did you mean e4m3"):
        gq.codes["e4m4"]
    with pytest.raises(DTypeError, match="encode floats with"):
        gq.codes["e4m3"].decode(np.zeros(3, np.float32))
    with pytest.raises(DTypeError, match="floats are encoded"):
        gq.codes["int8"].encode(np.arange(3))
    with pytest.raises(UnsupportedError, match="neither NaN nor infinity"):
        gq.codes["int8"].encode(np.zeros(3, np.float32), saturate=False)
    with pytest.raises(UnsupportedError, match="ties of floats"):
        gq.codes["e4m3"].encode(np.zeros(3, np.float32), rounding="half_away")
    with pytest.raises(UnsupportedError, match="half_even"):
        gq.codes["int8"].encode(np.zeros(3, np.float32), rounding="trunc")


def test_any_shape_and_strides_and_width(fresh):
    x = fresh.standard_normal((6, 5, 4)) * 100
    for view in (x, x[::-1, :, ::2], x.T, np.asfortranarray(x), x[0, 0, 0], x[:0]):
        codes = CODES["e4m3"].encode(view)
        assert codes.shape == np.shape(view)
        np.testing.assert_array_equal(
            codes, np.asarray(view, np.float32).astype(FLOATS["e4m3"]).view(np.uint8)
        )
    for dtype in (np.float16, ml_dtypes.bfloat16):
        np.testing.assert_array_equal(
            CODES["e5m2"].encode(x.astype(dtype)), CODES["e5m2"].encode(x.astype(dtype).astype(np.float32))
        )
