"""The compiled quantizer gives the bits of the rule in NumPy, whatever the tile, the dtype and the data."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.codes import CODES, scaling
from ggmlq.codes.scaling import Rule
from ggmlq.codes.tiling import tiling
from ggmlq.cpu import quantize_scaled as compiled
from ggmlq.cpu.quantize_scaled import driver

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
TILES = ((1, 128), (128, 128), (1, None), (None, None), (None, 32), (3, 17), (40, 64), (1, 5))
SHAPES = 20  # of each kernel that a run compiles


def same(a, b):
    return (a is None and b is None) or (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def data(fresh, rows, columns, dtype):
    """Numbers of one magnitude, with what is difficult among them."""
    x = fresh.standard_normal((rows, columns)) * 10.0 ** fresh.integers(-12, 6)
    x[fresh.random(x.shape) < 0.02] = 0
    x[fresh.random(x.shape) < 0.01] = -0.0
    for odd in (np.nan, np.inf, -np.inf, 1e30, -1e-40):
        if fresh.random() < 0.25:
            x[fresh.integers(rows), fresh.integers(columns)] = odd
    if fresh.random() < 0.3:
        x[fresh.integers(rows)] = 0
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    how = fresh.integers(4)
    return (x, x[::-1], np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2])[how]


@pytest.mark.parametrize("kind", ["float", "integer", "with zero points"])
def test_codes_scales_and_zero_points_are_those_of_the_rule(kind, fresh):
    """Of each kind one code, dtype and rule a run: each is a kernel of its own that is compiled."""
    names = {"float": ("e4m3", "e5m2"), "with zero points": ("int8_full", "uint8", "int16", "uint16")}
    zeros = kind == "with zero points"
    code = CODES[str(fresh.choice(names.get(kind, ("int8", "int8_full", "uint8", "int16", "uint16"))))]
    dtype, rounding = DTYPES[fresh.integers(len(DTYPES))], str(fresh.choice(code.roundings))
    scale = str(fresh.choice(["float32", "e8m0"]))
    for _ in range(SHAPES):
        shape = int(fresh.integers(1, 260)), int(fresh.integers(1, 700))
        over = tiling(TILES[fresh.integers(len(TILES))], *shape)
        eps = np.float32(fresh.choice([1e-10, 0, 1e-4]))
        rule = Rule(code, scale, eps, rounding, zeros, str(fresh.choice(["rows", "columns"])))
        x = data(fresh, *shape, dtype)
        wanted, found = scaling.quantize(x, over, rule), compiled.quantize(x, over, rule)
        for what, a, b in zip(wanted._fields, wanted, found, strict=True):
            assert same(a, b), (what, rule, over, x.dtype, x.strides)
        if rule.order == "columns":
            assert found.scales.strides[0] == found.scales.itemsize


@pytest.mark.parametrize("tile", [(1, 128), (2, 64), (1, 5), (None, None), (4, None)])
@pytest.mark.parametrize(
    ("name", "scale", "zeros"),
    [
        ("int8", "float32", False),
        ("int8", "e8m0", False),
        ("uint8", "float32", True),
        ("e4m3", "float32", False),
    ],
)
def test_a_nan_shows(name, scale, zeros, tile, fresh, monkeypatch):
    """Integers have no code for it: the scale of its tile is NaN, and of no other tile."""
    code, sign = CODES[name], fresh.choice([np.nan, -np.nan])
    rule = Rule(code, scale, np.float32(1e-10), "half_even", zeros)
    x = fresh.standard_normal((8, 256)).astype(np.float32)
    x[5, 131] = sign
    over = tiling(tile, *x.shape)
    monkeypatch.setattr(driver, "LARGEST", int(fresh.choice([256, 1 << 20])))  # tiles at once, or in parts
    wanted, found = scaling.quantize(x, over, rule), compiled.quantize(x, over, rule)
    assert all(same(a, b) for a, b in zip(wanted, found, strict=True))
    s = gq.ScaledArray(found.codes, found.scales, code, tile, found.zeros)
    tiles = np.isnan(scaling.values(found.scales))
    here = np.zeros_like(tiles)
    here[5 // over.r, 131 // over.c] = code.kind == "integer"
    assert (tiles == here).all()
    assert np.isnan(s.dequantize()[5, 131])
    assert (
        code.kind == "float"
        or found.scales.tobytes().count(b"\0\0\xc0\x7f" if scale != "e8m0" else b"\xff") == 1
    )


@pytest.mark.parametrize("name", ["e5m2", "uint8"])
def test_given_scales_of_any_size_and_sign(name, fresh):
    code = CODES[name]
    zeros = name == "uint8"
    rule = Rule(code, "float32", np.float32(0), "half_even", zeros)
    for tile in TILES:
        over = tiling(tile, 37, 300)
        x = data(fresh, 37, 300, np.float32)
        s = 10.0 ** fresh.integers(-44, 37, over.shape) * fresh.choice(
            [1, -1, 0, 1, np.inf, np.nan], over.shape
        )
        with np.errstate(all="ignore"):
            s = s.astype(np.float32)
        points = fresh.integers(0, 256, over.shape).astype(np.int32) if zeros else None
        assert same(scaling.encode(x, over, rule, s, points), compiled.encode(x, over, rule, s, points)), tile
        if zeros:
            assert same(scaling.zeros_of(x, over, rule, s), compiled.zeros_of(x, over, rule, s)), tile


@pytest.mark.parametrize("name", ["uint16", "e4m3"])
def test_quotients_next_to_ties_are_divided_exactly(name, fresh):
    """Products of a tie and a scale, and their neighbours: what a reciprocal would get wrong."""
    code = CODES[name]
    s = fresh.uniform(1, 2, (64, 1)).astype(np.float32) * np.float32(2.0) ** fresh.integers(-40, 40, (64, 1))
    s = s.astype(np.float32)
    if code.kind == "integer":
        ties = fresh.integers(0, 65535, (64, 4096)) + 0.5
    else:
        values = np.sort(code.table[np.isfinite(code.table)]).astype(np.float64)
        middle = (values[1:] + values[:-1]) / 2
        ties = middle[fresh.integers(0, len(middle), (64, 4096))]
    x = (ties * s.astype(np.float64)).astype(np.float32)
    x = (x.view(np.int32) + fresh.integers(-2, 3, x.shape, np.int32)).view(np.float32)
    rule, over = Rule(code, "float32", np.float32(0), "half_even", False), tiling((1, None), *x.shape)
    assert same(scaling.encode(x, over, rule, s, None), compiled.encode(x, over, rule, s, None))


@pytest.mark.parametrize(
    "tile", [(1, None), (None, None), (None, 4096), (300, None), (128, 128), (300, 1000)]
)
def test_tiles_that_no_cache_holds_are_put_together_from_parts(tile, fresh):
    x = fresh.standard_normal((700, 4100), np.float32)
    x[fresh.integers(700), fresh.integers(4100)] = 100
    over = tiling(tile, *x.shape)
    rule = Rule(CODES["int8"], "float32", np.float32(1e-10), "half_even", False)
    wanted, found = scaling.quantize(x, over, rule), compiled.quantize(x, over, rule)
    assert same(wanted.scales, found.scales)
    assert same(wanted.codes, found.codes)
    assert same(wanted.codes, compiled.encode(x, over, rule, wanted.scales, None))


def test_units_cover_every_element_once(fresh):
    for _ in range(200):
        rows, columns = (int(n) for n in fresh.integers(1, 3000, 2))
        r, c = (int(fresh.integers(1, n + 1)) for n in (rows, columns))
        over = tiling((r, c), rows, columns)
        for cut in (driver.near(over, 4), driver.far(over, 4), driver.flat(over, 2)):
            if cut is None:
                assert over.r * over.c * 4 > driver.LARGEST
                continue
            assert cut.bands == over.shape[0]
            assert (cut.parts - 1) * cut.high < cut.r <= cut.parts * cut.high
            assert (cut.across - 1) * cut.wide < columns <= cut.across * cut.wide
            assert cut.wide % over.c == 0 or columns in (cut.wide, over.c)


def test_a_large_array_goes_through_the_compiled_quantizer(fresh, monkeypatch):
    x = fresh.standard_normal((300, 1024), np.float32)
    asked = []
    monkeypatch.setattr(compiled, "quantize", lambda *args: asked.append(args) or scaling.quantize(*args))
    s = gq.quantize_scaled(x, "e4m3", (1, 128))
    assert len(asked) == 1
    assert same(s.codes, gq.quantize_scaled(x[:10], "e4m3", (1, 128)).codes) is False
    assert same(s.codes[:10], gq.quantize_scaled(x[:10], "e4m3", (1, 128)).codes)


def test_one_row_of_many_is_read_as_well(fresh):
    x = fresh.standard_normal(1 << 19).astype(np.float16)
    s = gq.quantize_scaled(x, "int8", (1, None))
    assert s.scales.item() == np.abs(x).max().astype(np.float32) / np.float32(127)
    assert same(s.codes[:1000], CODES["int8"].encode(x[:1000].astype(np.float32) / s.scales.item()))
