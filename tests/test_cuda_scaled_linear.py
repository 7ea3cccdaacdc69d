"""Every CUDA rung of ``scaled_linear`` against the float64 oracle, and against each other to the bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

import ggmlq as gq
from ggmlq.codes import CODES
from ggmlq.codes.tiling import tiling
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.codes8.rows import ColumnGroups, column_groups
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import Operand, ScaledLinear

RUNGS = gq.kernels("scaled_linear", device="cuda")
NAMES = [rung.name for rung in RUNGS]
# Hopper's tensor cores align products of a step with the largest one, and cut them off. Of codes whose bits
# are random that costs 2.2e-4, more than of normal data (1.3e-4).
SPREAD = 2.5e-4
FLOATS, BYTES = ("e4m3", "e5m2"), ("int8", "int8_full", "uint8")
TILINGS = {
    "tensors": ((None, None), (None, None)),
    "rows": ((1, None), (1, None)),
    "groups and blocks": ((1, 128), (128, 128)),
    "blocks": ((128, 128), (128, 128)),
    "wider weights": ((1, 64), (1, 256)),
    "wider x": ((1, 256), (64, 128)),
    "rows and blocks": ((1, None), (128, 128)),
    "short groups": ((1, 32), (1, 32)),
    "odd groups": ((3, 48), (5, None)),
    "longer odd groups": ((1, 100), (7, 200)),
}
SHAPES = [
    (1, 1, 16), (1, 129, 256), (5, 33, 300), (16, 64, 128), (17, 65, 129), (63, 127, 1000), (64, 128, 512),
    (130, 260, 640), (257, 513, 2064), (3, 7, 5), (40, 576, 7168), (9, 8, 3884),
]  # fmt: skip


def scaled(rng, code, tile, rows, k, zeros=False, order="rows"):
    """Random codes and scales; floats without NaN, and within one octave of the others' reach."""
    code = CODES[code]
    raw = rng.integers(0, 256, (rows, k * code.dtype.itemsize), np.uint8)
    if code.kind == "float":
        raw[(raw & 0x7F) >= (0x78 if code.name == "e5m2" else 0x7F)] ^= 0x48
    codes = raw.view(code.dtype)
    if code.name == "int8":
        codes = np.maximum(codes, -127)
    shape = tiling(tile, rows, k).shape
    scales = rng.uniform(0.01, 2, shape).astype(np.float32)
    if order == "columns":
        scales = np.asfortranarray(scales)
    points = rng.integers(0, 120, shape).astype(np.int32) if zeros else None
    return gq.ScaledArray(codes, scales, code, tile, points)


def problem_of(x, w, accumulate=None):
    return ScaledLinear.here(Operand.of(x), Operand.of(w), len(x), *w.shape, accumulate, device="cuda")


def multiply(cupy, rung, x, w, dx=None, dw=None):
    """The product, run twice, into a poisoned array between two guard rows."""
    m, n = x.shape[0], w.shape[0]
    around = cupy.full((m + 2, n), np.nan, np.float32)
    y, dx, dw = around[1:-1], dx or x.to("cuda"), dw or w.to("cuda")
    rung.launch(dx, dw, y)
    once = y.get()
    y.fill(np.nan)
    rung.launch(dx, dw, y)
    assert np.array_equal(once, y.get(), equal_nan=True), f"{rung.name}: two runs differ"
    assert np.isnan(around[[0, -1]].get()).all(), f"{rung.name} writes past its output"
    return once


def error(y, want):
    """Mean |d| over mean |ref|; NaN and infinities must be in the same places."""
    assert np.array_equal(np.isnan(y), np.isnan(want))
    finite = np.isfinite(want) & np.isfinite(y)
    assert np.array_equal(y[~finite], want[~finite].astype(np.float32), equal_nan=True)
    if not finite.any():
        return 0.0
    y, want = y[finite], want[finite]
    return float(np.abs(y - want).mean() / max(np.abs(want).mean(), 1e-30))


def check(cupy, x, w, accumulate=None, spread=SPREAD):
    """All rungs that take it: integers to the bit like the CPU's plainest, floats beside the oracle."""
    problem, served = problem_of(x, w, accumulate), []
    want = gq.reference.scaled_linear(x, w)
    exact = gq.scaled_linear(x, w, kernel="cpu:naive") if problem.integer and accumulate is None else None
    for rung in RUNGS:
        if reason := rung.refuses(problem):
            assert reason[0].islower() or reason.startswith("BLOCK")
            continue
        y = multiply(cupy, rung, x, w)
        served.append(rung.name)
        if exact is not None and rung.name != "cuda:tiled":
            assert np.array_equal(y, exact), (rung.name, str(problem), np.abs(y - exact).max())
        bound = spread if "every 128" in rung.accumulate and not problem.integer else 1e-5
        bound *= 1 + 3 / np.sqrt(y.size)  # means of few numbers scatter: three standard deviations
        assert error(y, want) <= bound, (rung.name, str(problem), error(y, want))
    return served


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("name", TILINGS)
def test_floats_of_every_tiling(name, cupy, fresh):
    of_x, of_w = TILINGS[name]
    for i, shape in enumerate([(70, 200, 640), (19, 140, 1000), (130, 130, 272)]):
        m, n, k = shape
        a, b = fresh.choice(FLOATS, 2)
        order = ("rows", "columns")[i % 2]
        x, w = scaled(fresh, a, of_x, m, k, order=order), scaled(fresh, b, of_w, n, k, order=order)
        served = check(cupy, x, w)
        assert "cuda:naive" in served
        assert "cuda:widen" in served


@pytest.mark.cuda
@pytest.mark.parametrize("zeros", ["none", "x", "w", "both"])
@pytest.mark.parametrize("name", TILINGS)
def test_integers_of_every_tiling(name, zeros, cupy, fresh):
    of_x, of_w = TILINGS[name]
    for i, shape in enumerate([(70, 200, 640), (19, 140, 1000), (130, 130, 272)]):
        m, n, k = shape
        a, b = fresh.choice(BYTES, 2)
        order = ("rows", "columns")[i % 2]
        x = scaled(fresh, a, of_x, m, k, zeros in ("x", "both"), order)
        w = scaled(fresh, b, of_w, n, k, zeros in ("w", "both"), order)
        served = check(cupy, x, w)
        assert {"cuda:naive", "cuda:dp4a", "cuda:mma_int8"} <= set(served)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, cupy, fresh):
    m, n, k = shape
    for of_x, of_w in (TILINGS["rows"], TILINGS["groups and blocks"]):
        check(cupy, *(scaled(fresh, c, t, r, k) for c, t, r in (("int8", of_x, m), ("int8_full", of_w, n))))
        check(cupy, *(scaled(fresh, c, t, r, k) for c, t, r in (("e4m3", of_x, m), ("e4m3", of_w, n))))


@pytest.mark.cuda
def test_every_pair_of_codes(cupy, fresh):
    for kind in ("integer", "float"):
        codes = [code.name for code in CODES.values() if code.kind == kind]
        for a in codes:
            for b in codes:
                check(cupy, scaled(fresh, a, (1, None), 20, 96), scaled(fresh, b, (1, None), 30, 96))
                check(cupy, scaled(fresh, a, (1, 32), 20, 96), scaled(fresh, b, (8, 32), 30, 96))


@pytest.mark.cuda
def test_the_int8_documents_sums(cupy, fresh):
    """Every 32 columns in float32: like a program that does just that."""
    x = scaled(fresh, "int8_full", (1, None), 33, 4096)
    w = scaled(fresh, "int8_full", (None, None), 70, 4096)
    x.codes.setflags(write=True)
    x.codes[...] = np.abs(x.codes.astype(np.int16)).clip(0, 127).astype(np.int8)
    total = np.zeros((33, 70), np.float32)
    for k in range(0, 4096, 32):
        part = x.codes[:, k : k + 32].astype(np.int32) @ w.codes[:, k : k + 32].astype(np.int32).T
        total += part.astype(np.float32)
    want = total * (x.scales * w.scales)
    (rung,) = [rung for rung in RUNGS if rung.name == "cuda:tiled"]
    assert np.array_equal(multiply(cupy, rung, x, w), want)
    y = gq.scaled_linear(x.to("cuda"), w.to("cuda"), accumulate="fp32_chunks")
    assert np.array_equal(y.get(), want)


@pytest.mark.cuda
def test_the_largest_sums(cupy):
    """int32 to its last bit, and beyond it the rungs that sum wider."""
    for k, fits in ((131071, True), (131072, False), (140000, False)):
        ends = np.full((2, k), -128, np.int8), np.full((3, k), -128, np.int8)
        x, w = (gq.ScaledArray(c, np.ones((1, 1), np.float32), "int8_full", (None, None)) for c in ends)
        served = check(cupy, x, w)
        assert ("cuda:mma_int8" in served) is fits
        y = gq.scaled_linear(x.to("cuda"), w.to("cuda")).get()
        assert np.array_equal(y, np.full((2, 3), np.float32(128 * 128 * k)))


@pytest.mark.cuda
def test_nan_and_infinity_stay_where_they_are(cupy, fresh):
    x, w = scaled(fresh, "e4m3", (1, 128), 33, 384), scaled(fresh, "e5m2", (128, 128), 70, 384)
    x, w = x.copy(), w.copy()
    for s in (x, w):  # beside an infinite scale 0 and two signs give NaN, or nothing in a sum
        s.codes[s.codes & 0x7F == 0] = 1
        s.codes[:, 256:] &= 0x7F
    x.codes[3, 200], w.codes[60, 10], w.codes[9, 300] = 0x7F, 0x7C, 0xFF
    spread = 2 * SPREAD  # tensor cores cut sums off: where all products are positive, errors add up
    check(cupy, x, w, spread=spread)
    x.codes[3, 200], x.scales[7, 1], x.scales[8, 2] = 1, np.nan, np.inf
    check(cupy, x, w, spread=spread)


@pytest.mark.cuda
def test_codes_of_any_pitch_and_place(cupy, fresh):
    """Rows that do not begin at multiples of 16 bytes, parts of wider arrays, one row."""
    for code, rungs in (("int8", "mma_int8"), ("e4m3", "widen")):
        for k, start in ((256, 0), (256, 3), (250, 1), (240, 16)):
            x, w = scaled(fresh, code, (1, None), 40, k), scaled(fresh, code, (1, None), 50, k)
            (rung,) = [rung for rung in RUNGS if rung.name == f"cuda:{rungs}"]
            plain = multiply(cupy, rung, x, w)
            moved = []
            for s in (x, w):
                wide = cupy.zeros((len(s), 301), s.code.dtype)
                wide[:, start : start + k] = cupy.asarray(s.codes)
                part = wide[:, start : start + k]
                moved.append(gq.ScaledArray(part, cupy.asarray(s.scales), s.code, s.tile))
            assert np.array_equal(multiply(cupy, rung, x, w, *moved), plain)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_nothing_to_multiply(rung, cupy, fresh):
    code = "int8" if rung.name not in ("cuda:widen", "cuda:mma_e4m3") else "e4m3"
    for m, n, k in ((0, 5, 64), (4, 0, 64), (4, 5, 0)):
        x, w = scaled(fresh, code, (1, None), m, k), scaled(fresh, code, (1, None), n, k)
        accumulate = "fp32_chunks" if rung.name == "cuda:tiled" else None
        if rung.refuses(problem_of(x, w, accumulate)) is None:
            assert not multiply(cupy, rung, x, w).any()


@pytest.mark.cuda
def test_a_graph_of_products(cupy, fresh):
    x, w = (scaled(fresh, "e4m3", t, r, 512).to("cuda") for t, r in (((1, 128), 64), ((128, 128), 256)))
    want = gq.scaled_linear(x, w)
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.zeros((64, 256), np.float32)
    with stream:
        gq.scaled_linear(x, w, out=out)
        stream.synchronize()
        out.fill(0)
        stream.begin_capture()
        gq.scaled_linear(x, w, out=out)
        stream.end_capture().launch(stream)
    stream.synchronize()
    assert cupy.array_equal(out, want)


# --- without one ------------------------------------------------------------------------------


@cache
def card(capability, shared=227):
    return Card("a GPU", capability, 132, shared << 10)


def problem(x="int8", w="int8", c=4096, capability=(9, 0), accumulate=None, k=4096, zeros=False):
    a, b = Operand(x, 1, c, zeros), Operand(w, 1, c)
    return ScaledLinear(a, b, 64, 4096, k, accumulate, device="cuda", card=card(capability))


def taken(**facts):
    return [rung.name for rung in RUNGS if rung.refuses(problem(**facts)) is None]


def test_which_rungs_take_what(monkeypatch):
    monkeypatch.setattr(device, "_cublas_problem", lambda: None)
    exact = ["cuda:naive", "cuda:dp4a", "cuda:mma_int8"]
    hopper = ["cuda:persistent", "cuda:small_m", "cuda:split_k"]
    assert sorted(taken()) == sorted(exact + hopper[:2])
    assert sorted(taken(c=128, x="uint8", zeros=True)) == sorted(exact)
    assert sorted(taken(capability=(7, 5))) == sorted(exact[:-1])
    assert taken(accumulate="fp32_chunks") == ["cuda:tiled"]
    assert taken(accumulate="int64") == ["cuda:naive"]
    assert taken(c=1 << 20, k=1 << 20) == ["cuda:naive"]
    assert taken(x="int16") == ["cuda:naive"]
    assert sorted(taken(x="e4m3", w="e5m2")) == sorted(["cuda:naive", "cuda:widen", *hopper])
    assert sorted(taken(x="e4m3", w="e5m2", capability=(8, 9))) == [
        "cuda:mma_e4m3",
        "cuda:naive",
        "cuda:widen",
    ]
    assert sorted(taken(x="e4m3", w="e4m3", capability=(7, 5))) == ["cuda:dequant", "cuda:naive"]
    assert taken(x="e4m3", w="e4m3", c=4) == ["cuda:naive"]


def test_hopper_is_told_why_not():
    (rung,) = [rung for rung in RUNGS if rung.name == "cuda:mma_e4m3"]
    assert "on 9.0 mma.sync has no FP8 of its own" in rung.refuses(problem(x="e4m3", w="e4m3"))


def test_groups_are_whole_steps():
    assert column_groups(4096, 4096) == ColumnGroups(4096, 4096, 128)
    assert column_groups(300, 300) == ColumnGroups(300, 384, 128)
    assert column_groups(512, 128) == ColumnGroups(128, 128, 128)
    assert column_groups(512, 64) == ColumnGroups(64, 64, 64)
    assert column_groups(512, 96) == ColumnGroups(96, 96, 32)
    assert column_groups(512, 48) == ColumnGroups(48, 64, 64)
    assert column_groups(512, 100) == ColumnGroups(100, 128, 128)
    assert column_groups(512, 200) == ColumnGroups(200, 256, 128)
    assert column_groups(512, 17) == ColumnGroups(17, 32, 32)
    assert column_groups(512, 128, 32) == ColumnGroups(128, 128, 32)
    assert column_groups(500, 500, 32) == ColumnGroups(500, 512, 32)
