"""Quotients by the sum of two floats give the codes that division gives; computed here in NumPy.

Operands are drawn where it is hardest: x next to scale times a boundary between codes, and scales whose
last bits are as close to those that are left to division as they may be.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

import ggmlq as gq
from ggmlq.codes import CODES, MiniFloat
from ggmlq.codes.tiling import Tiling
from ggmlq.cuda.intrinsics import codes8
from ggmlq.cuda.kernels.quantize_scaled import _codes as division
from ggmlq.cuda.kernels.quantize_scaled import rows_of
from ggmlq.cuda.kernels.quantize_scaled._codes import NATIVE, Conversion

F32, U32 = np.float32, np.uint32
SAFE = [(name, zeros) for name in ("e4m3", "e5m2", "int8", "int8_full", "uint8") for zeros in (False, True)]


def fma(a, b, c):
    """Fused: a * b + c of float32 with one rounding; the exact sum is rounded to odd first."""
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    other = total - product
    rest = (product - (total - other)) + (c - other)
    bits = total.view(np.int64)
    inexact = (rest != 0) & (bits & 1 == 0) & np.isfinite(total)
    towards = np.where((rest > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + towards, bits).view(np.float64).astype(F32)


def inverse(s):
    """The inverse that kernels compute: h + l."""
    one = np.ones_like(s)
    h = one / s
    h = np.where(fma(-s, h, one) < 0, (h.view(U32) - U32(1)).view(F32), h)
    return h, fma(-s, h, one) * h


def safe(s, code, zeros):
    """True for scales whose quotients the kernels take from the inverse."""
    bits, mask = s.view(U32), U32((1 << 25 - division.boundary_bits(code, zeros)) - 1)
    low = (bits + U32(division.NEAR)) & mask
    return (low > 2 * division.NEAR) & (bits - U32(division.MIN_SAFE_SCALE) < U32(division.SAFE_SPAN))


def boundaries(code):
    """Every number at which the code of a quotient changes, up to beyond the range."""
    if isinstance(code, MiniFloat):
        found = code.decode(np.arange(code.largest + 1, dtype=np.uint8)).astype(np.float64)
        return (found[1:] + found[:-1]) / 2
    return np.arange(0, 258) + 0.5


def hard_scales(rng, code, zeros, count):
    free = 25 - division.boundary_bits(code, zeros)
    high = rng.integers(0, 1 << 23 - free, count) << free
    near = rng.integers(division.NEAR - 8, division.NEAR + 40, count) * rng.choice([-1, 1], count)
    bits = (rng.integers(27, 227, count) << 23) + high + near
    drawn = rng.integers(27 << 23, 227 << 23, count)
    return np.where(rng.random(count) < 0.7, bits, drawn).astype(U32).view(F32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "zeros"), [c for c in SAFE if not c[1] or CODES[c[0]].min != -CODES[c[0]].max]
)
def test_the_codes_of_division(name, zeros, fresh, rounds):
    code = CODES[name]
    edges = boundaries(code)
    taken = 0
    for _ in rounds(0.7):
        s = hard_scales(fresh, code, zeros, 300)
        s = s[safe(s, code, zeros)][:, None, None]
        near = (s.astype(np.float64) * fresh.choice(edges, (1, 120, 1))).astype(F32)
        bits = near.view(np.int32) + np.arange(-3, 4, dtype=np.int32)
        x = np.where(fresh.random(near.shape) < 0.5, F32(1), F32(-1)) * bits.view(F32)
        h, low = inverse(s)
        with np.errstate(all="ignore"):
            quotient = fma(x, np.broadcast_to(h, x.shape), x * low)
            want = x / s
        assert (low > 0).all()
        for rounding in code.roundings:
            assert np.array_equal(
                code.encode(quotient, rounding=rounding), code.encode(want, rounding=rounding)
            )
        taken += x.size
    assert taken


def test_signs_zeros_and_infinities(fresh):
    code = CODES["e4m3"]
    s = hard_scales(fresh, code, False, 4000)
    s = s[safe(s, code, False)][:, None]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3e38, -3e38]
    x = np.array([special], F32) + 0 * s
    h, low = inverse(s)
    with np.errstate(all="ignore"):
        assert np.array_equal(code.encode(fma(x, np.broadcast_to(h, x.shape), x * low)), code.encode(x / s))


def test_scales_that_are_divided_by():
    """Powers of two, tiny, huge, negative and those that are no numbers."""
    s = np.array([1, 2.0**-50, 1e-35, 1e35, -1.3, 0, np.inf, np.nan, 1e-42], F32)
    assert not safe(s, CODES["e4m3"], False).any()
    assert division.is_safe(CODES["int16"], False) is None


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_what_the_instruction_means(name, fresh):
    """Four floats at once are the codes that integers make, but for the sign of NaN."""
    x = fresh.integers(0, 1 << 32, 4000, U32).view(F32)
    edges = boundaries(CODES[name]).astype(F32)
    x = np.concatenate([x[~np.isnan(x)], edges, -edges, F32([0, -0.0, np.inf, 1e30])])
    x = np.resize(x, x.size // 4 * 4)
    meaning = getattr(codes8, f"four_{name}").meaning
    got = np.array([meaning(*four) for four in x.reshape(-1, 4)], U32)
    assert np.array_equal(got.view(np.uint8), CODES[name].encode(x))
    assert meaning(np.nan, 1, 1, 1) & 255 == 0x7F


def test_a_way_says_what_it_is():
    way = Conversion("e4m3", "float32", "half_even", False, True)
    assert (way.least, way.size) == (NATIVE, 1)
    assert str(way) == "e4m3 by float32 half_even native"


@pytest.mark.parametrize(
    "over", [Tiling(1 << 31, 1, 1, 1), Tiling(1, 1 << 31, 1, 128), Tiling(1 << 17, 1 << 16, 1, 1)]
)
def test_more_than_kernels_count(over):
    with pytest.raises(gq.GGMLQError, match="32 bits; quantize fewer rows"):
        rows_of(None, over)
