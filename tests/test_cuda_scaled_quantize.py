"""Floats to codes with scales on a GPU: the bits of codes/scaling.py, for every code, tile and layout."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed (extra test)")

from scaled_cases import DTYPES, TILES, case, same, values

import ggmlq as gq
from ggmlq.codes import CODES, scaling
from ggmlq.codes.scaling import Rule
from ggmlq.codes.tiling import tiling

pytestmark = pytest.mark.cuda
E4M3 = Rule(CODES["e4m3"], "float32", np.float32(1e-10), "half_even", False)


def assert_same(got, want, code, told):
    for part, other, kind in zip(got, want, (code, None, None), strict=True):
        assert (part is None) is (other is None), told
        assert part is None or same(part.get(), other, kind), told


def quantized(x, over, rule):
    with np.errstate(all="ignore"):
        return scaling.quantize(np.asarray(x), over, rule)


@pytest.fixture
def quantizer(cupy):
    from ggmlq.cuda.kernels import quantize_scaled

    return quantize_scaled


def test_every_code_and_tile(quantizer, cupy, fresh, rounds):
    """Cases drawn, given scales too; the first ones go through all tiles and codes."""
    for at in rounds(20):
        x, over, rule = case(fresh, at)
        told = f"{at}: {x.dtype} {over} {rule}"
        device, want = cupy.asarray(x), quantized(x, over, rule)
        assert_same(quantizer.quantize(device, over, rule), want, rule.code, told)
        scales = cupy.asarray(want.scales)
        if rule.scale == "float32":
            scales *= np.float32(fresh.choice([1, 0.75, 0, -1, np.nan, 2.0**-126]))
        with np.errstate(all="ignore"):
            zeros = scaling.zeros_of(x, over, rule, scales.get()) if rule.zeros else None
            codes = scaling.encode(x, over, rule, scales.get(), zeros)
        made = quantizer.zeros_of(device, over, rule, scales) if rule.zeros else None
        assert zeros is None or np.array_equal(made.get(), zeros), told
        assert same(quantizer.encode(device, over, rule, scales, made).get(), codes, rule.code), told


LARGE = [
    ((300, 7168), (1, 128)), ((200, 1024), (128, 128)), ((70, 640), (64, 64)), ((9, 7168), (1, None)),
    ((5, 16384), (1, None)), ((3, 20000), (1, None)), ((130, 8192), (1, 8192)), ((64, 16384), (1, 4096)),
    ((500, 3000), (None, None)), ((257, 640), (None, 1)), ((333, 999), (7, 11)), ((40, 2048), (1, 512)),
    ((100, 4096), (1, 1024)), ((100, 4096), (1, 2048)), ((100, 16384), (1, 16384)), ((129, 768), (1, 256)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "tile"), LARGE, ids=str)
def test_large(shape, tile, quantizer, cupy, fresh):
    """Large arrays by e4m3 and another code, from one kind of floats each; the draw differs between runs."""
    over = tiling(tile, *shape)
    for name in ("e4m3", str(fresh.choice(["e5m2", "int8", "uint8", "int16"]))):
        x = values(fresh, shape, DTYPES[fresh.integers(len(DTYPES))])
        for order in ("rows", "columns"):
            rule = E4M3._replace(code=CODES[name], order=order, zeros=name == "uint8")
            got, want = quantizer.quantize(cupy.asarray(x), over, rule), quantized(x, over, rule)
            assert_same(got, want, rule.code, f"{x.dtype} {name} {order}")
            assert (got.scales.strides == want.scales.strides) or got.scales.size < 2


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "int8"])
def test_any_float(name, quantizer, cupy, fresh):
    """Codes of millions of patterns, by conversion instructions where the GPU has them."""
    bits = fresh.integers(0, 1 << 32, (512, 4096), np.uint32)
    over, rule = tiling((None, None), *bits.shape), E4M3._replace(code=CODES[name])
    scales = np.ones((1, 1), np.float32)
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        want = scaling.encode(x, over, rule, scales, None)
    got = quantizer.encode(cupy.asarray(x), over, rule, cupy.asarray(scales), None)
    assert same(got.get(), want, rule.code)


def test_scales_where_quotients_are_hardest(quantizer, cupy, fresh):
    """Values next to scale times the middle between two codes, under scales of all kinds of last bits."""
    for name in ("e4m3", "e5m2", "int8"):
        code = CODES[name]
        rule = E4M3._replace(code=code)
        finite = code.decode(np.arange(120, dtype=code.dtype)).astype(np.float64)
        edges = (finite[1:] + finite[:-1]) / 2
        bits = fresh.integers(0, 8, 4096) << 20 | fresh.integers(-100, 101, 4096) & 0xFFFFF
        bits = np.where(fresh.random(4096) < 0.5, bits, fresh.integers(0, 1 << 23, 4096))
        s = (fresh.integers(60, 190, 4096) << 23 | bits).astype(np.uint32).view(np.float32)[:, None]
        near = (s * fresh.choice(edges, (1, 128))).astype(np.float32).view(np.int32)
        x = (near + fresh.integers(-2, 3, near.shape)).astype(np.int32).view(np.float32)
        over = tiling((1, 128), *x.shape)
        want = scaling.encode(x, over, rule, s, None)
        assert same(quantizer.encode(cupy.asarray(x), over, rule, cupy.asarray(s), None).get(), want, code)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_call(tile, cupy, fresh):
    """gq.quantize_scaled of 1 to 4 axes, of any strides, with given scales."""
    for shape in ((256,), (6, 256), (2, 3, 256), (2, 1, 3, 256)):
        x = values(fresh, (np.prod(shape[:-1], dtype=int), shape[-1]), np.float32).reshape(shape)
        ways = {"order": str(fresh.choice(["rows", "columns"])), "ragged": "pad"}
        with np.errstate(all="ignore"):
            want = gq.quantize_scaled(x, "e4m3", tile, **ways)
        device = cupy.asarray(np.stack([x, x], -1))[..., 0]
        for given in (cupy.asarray(x), device, cupy.asarray(x, order="F")):
            got = gq.quantize_scaled(given, "e4m3", tile, **ways)
            assert got.device == "cuda:0"
            assert same(got.codes.get(), want.codes, want.code)
            assert same(got.scales.get(), want.scales)
            again = gq.quantize_scaled(given, "e4m3", tile, scales=got.scales, **ways)
            assert same(again.codes.get(), want.codes, want.code)


@pytest.mark.parametrize("shape", [(0, 128), (3, 0), (0,), (0, 0)])
def test_nothing(shape, cupy):
    for tile in ((1, 128), (128, 128), (None, None), (1, None)):
        for zeros, code in ((False, "e4m3"), (True, "uint8")):
            want = gq.quantize_scaled(np.zeros(shape, np.float32), code, tile, zeros=zeros)
            got = gq.quantize_scaled(cupy.zeros(shape, np.float32), code, tile, zeros=zeros)
            assert (got.shape, got.scales.shape) == (want.shape, want.scales.shape)


@pytest.mark.parametrize(("columns", "tile"), [(128, (1, 128)), (10, (3, 5)), (64, (2, 64))])
def test_more_rows_than_a_grid_is_high(columns, tile, quantizer, cupy, fresh):
    x = fresh.standard_normal((600_001, columns)).astype(np.float16)
    over = tiling(tile, *x.shape)
    assert_same(quantizer.quantize(cupy.asarray(x), over, E4M3), quantized(x, over, E4M3), E4M3.code, columns)


def test_streams_and_a_graph(quantizer, cupy, fresh):
    """Work on two streams does not meet; a recorded call does its work again on new values."""
    tiles = [(1, 128), (128, 128), (None, None), (5, 3)]
    first, second = (fresh.standard_normal((257, 1024)).astype(np.float32) for _ in range(2))
    wants = [[quantized(x, tiling(t, *x.shape), E4M3) for t in tiles] for x in (first, second)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    given = [cupy.asarray(first), cupy.asarray(second)]
    cupy.cuda.Device().synchronize()
    found = [[], []]
    for t in tiles * 5:
        for x, stream, results in zip(given, streams, found, strict=True):
            with stream:
                results.append(quantizer.quantize(x, tiling(t, *x.shape), E4M3))
    for stream, results, want in zip(streams, found, wants, strict=True):
        stream.synchronize()
        for got, expected in zip(results, want * 5, strict=True):
            assert_same(got, expected, E4M3.code, "streams")
    for t, want in zip(tiles, wants[1], strict=True):
        x, over = cupy.asarray(first), tiling(t, *first.shape)
        with streams[0] as stream:
            quantizer.quantize(x, over, E4M3)
            stream.synchronize()
            stream.begin_capture()
            got = quantizer.quantize(x, over, E4M3)
            graph = stream.end_capture()
            for _ in range(3):
                x[...] = given[1]
                graph.launch(stream)
            stream.synchronize()
            assert_same(got, want, E4M3.code, f"graph {t}")


def test_calls_that_feed_each_other(quantizer, cupy, fresh):
    """Kernels that start early wait for what they read: quantize, decode, change, quantize."""
    start = cupy.asarray(fresh.standard_normal((512, 1024)).astype(np.float32))
    tiles = [(1, 128), (128, 128), (None, None), (1, None), (3, 1024)]

    def chain(wait):
        x = start
        for i in range(60):
            s = gq.quantize_scaled(x, "e4m3", tiles[i % len(tiles)])
            if wait:
                cupy.cuda.Device().synchronize()
            x = s.dequantize() * np.float32(1.01)
        return x.get()

    want = chain(wait=True)
    for _ in range(5):
        np.testing.assert_array_equal(chain(wait=False), want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_decode(dtype, cupy, fresh):
    """All codes, under scales of all magnitudes, in rows that are aligned or not."""
    for name in ("e4m3", "e5m2", str(fresh.choice(["int8", "uint8", "int16", "uint16"]))):
        code = CODES[name]
        for columns, tile in ((1024, (1, 128)), (77, (3, 5)), (256, (None, None))):
            patterns = fresh.integers(0, 1 << code.bits, (50, columns)).astype(f"u{code.dtype.itemsize}")
            over = tiling(tile, *patterns.shape)
            bits = fresh.integers(0, 1 << 32, over.shape, np.uint32)
            e8m0 = bool(fresh.integers(2))
            scales = bits.astype(np.uint8) if e8m0 else bits.view(np.float32)
            zeros = None
            if code.kind == "integer":
                zeros = fresh.integers(max(code.min, -200), min(code.max, 300) + 1, over.shape).astype(
                    np.int32
                )
            s = gq.ScaledArray(patterns.view(code.dtype), scales, name, tile, zeros)
            with np.errstate(all="ignore"):
                want = s.dequantize(dtype)
            got = s.to("cuda").dequantize(dtype)
            assert got.dtype == dtype
            assert np.array_equal(got.get(), want, equal_nan=True), f"{name} {columns} {e8m0}"
