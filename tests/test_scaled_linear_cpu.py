"""Products of codes with scales on the CPU: integers bit for bit, floats against the oracle."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.codes.tiling import tiling
from ggmlq.cpu import choice
from ggmlq.cpu.codes8 import float_multiply
from ggmlq.cpu.codes8.int_layout import cut_of, form_of, w_shift
from ggmlq.cpu.machine.target import AVX2, AVX512, DOTPROD, PLAIN
from ggmlq.dispatch.ladder import choose
from ggmlq.dispatch.problems import Operand, ScaledLinear
from ggmlq.dispatch.tuned import NOTHING
from ggmlq.errors import UnsupportedError

TILES = ((1, 128), (128, 128), (1, None), (None, None), (3, 64), (1, 1), (2, 3), (16, 32))
PAIRS = ("cpu:pairs",) if float_multiply.refused() is None else ()
EXACT = ("cpu:naive", "cpu:doubles", "cpu:tiles")
EDGES = (0, 1, 3, 4, 31, 32, 33, 63, 127, 128, 129, 256, 333)


def operand(fresh, rows, k, name, tile, zeros=False):
    """Any codes; now and then all the same, at an end of the range."""
    code = gq.codes[name]
    if code.kind == "integer":
        codes = fresh.integers(int(code.min), int(code.max) + 1, (rows, k)).astype(code.dtype)
        if fresh.random() < 0.2:
            codes[:] = int(fresh.choice([code.min, code.max]))
    else:
        codes = fresh.integers(0, 256, (rows, k), np.uint8)
        codes[(codes & 0x7F) > code.largest] = 0
    shape = tiling(tile, rows, k).shape
    scales = fresh.uniform(0.01, 0.1, shape).astype(np.float32)
    if fresh.random() < 0.3:
        scales = np.asfortranarray(scales)
    points = fresh.integers(int(code.min), int(code.max) + 1, shape).astype(np.int32) if zeros else None
    return gq.ScaledArray(codes, scales, code, tile, points)


def wide(x, w):
    """Whether scales change seldom enough for pairs."""
    return min(x.tiling.c, w.tiling.c, 16) == min(x.shape[1], 16)


def pair(fresh, names, zeros=True):
    """Two operands whose tiles fit, of a shape with an edge somewhere."""
    m, n, k = (
        int(fresh.choice([0, 1, 2, 5, 12, 13, 29])),
        int(fresh.choice([1, 15, 16, 17, 40])),
        int(fresh.choice(EDGES)),
    )
    while True:
        tiles = [TILES[i] for i in fresh.integers(0, len(TILES), 2)]
        c = sorted(tiling(t, 1, k).c for t in tiles)
        if c[1] % c[0] == 0 or c[1] >= k:
            break
    names = [str(fresh.choice(names)) for _ in range(2)]
    points = [zeros and fresh.random() < 0.5 for _ in range(2)]
    return [operand(fresh, *a) for a in zip((m, n), (k, k), names, tiles, points, strict=True)]


def fma(a, b, c):
    """Of float32, rounded once: in float64 with what it rounds away put back where it decides a tie."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(float(exact))
    best = min(
        (np.nextafter(near, np.float32(s)) for s in (-np.inf, np.inf)),
        key=lambda v: abs(Fraction(float(v)) - exact),
    )
    here, there = abs(Fraction(float(near)) - exact), abs(Fraction(float(best)) - exact)
    if here == there:
        return near if not int(near.view(np.int32)) & 1 else best
    return near if here < there else best


def by_hand(x, w):
    """The contract, in int64 and one fused multiply-add a group."""
    k, group = x.shape[1], max(1, min(x.tiling.c, w.tiling.c))
    whole = []
    for s in (x, w):
        rows = np.arange(s.shape[0]) // s.tiling.r
        codes = s.codes.astype(np.int64)
        if s.zeros is not None:
            codes -= s.zeros[rows[:, None], np.arange(k) // s.tiling.c]
        whole.append((codes, s.scales[rows]))
    (a, sa), (b, sb) = whole
    y = np.zeros((len(a), len(b)), np.float32)
    for start in range(0, k, group):
        part = slice(start, start + group)
        sums = (a[:, part] @ b[:, part].T).astype(np.float32)
        scale = sa[:, start // x.tiling.c, None] * sb[:, start // w.tiling.c]
        for at in np.ndindex(y.shape):
            y[at] = fma(sums[at], scale[at], y[at])
    return y


def terms(x, w):
    """How large what is added is: a few sums may nearly cancel, and float32 rounds on the way there."""
    return (np.abs(x.dequantize(np.float64)) @ np.abs(w.dequantize(np.float64)).T).mean()


def test_exact_rungs_agree_bit_for_bit(fresh, rounds):
    for _ in rounds(1.5):
        x, w = pair(fresh, ("int8", "int8_full", "uint8"))
        wanted = gq.scaled_linear(x, w, kernel="cpu:naive")
        for kernel in EXACT[1:]:
            found = gq.scaled_linear(x, w, kernel=kernel)
            assert found.tobytes() == wanted.tobytes(), (kernel, x, w)
        oracle = gq.reference.scaled_linear(x, w)
        if wanted.size:  # where zero points leave nothing, the oracle's float64 leaves a rest
            rest = 1e-14 * 255**2 * x.shape[1] * float(x.scales.max(initial=0) * w.scales.max(initial=0))
            near = 1e-5 * np.abs(oracle).mean() + 1e-6 * terms(x, w) + rest
            assert np.abs(wanted - oracle).mean() <= near, (x, w)


def test_exact_rungs_do_what_the_contract_says(fresh):
    for _ in range(6):
        x, w = pair(fresh, ("int8", "int8_full", "uint8"))
        x, w = x[:5], w[:17]
        assert gq.scaled_linear(x, w).tobytes() == by_hand(x, w).tobytes(), (x, w)


def test_integers_of_16_bits_go_through_doubles(fresh):
    for _ in range(6):
        x, w = pair(fresh, ("int16", "uint16", "int8"))
        wanted = gq.scaled_linear(x, w, kernel="cpu:naive")
        assert gq.scaled_linear(x, w, kernel="cpu:doubles").tobytes() == wanted.tobytes()
    x, w = (operand(fresh, n, 64, "uint16", (1, None)) for n in (3, 4))
    assert gq.kernels("scaled_linear")
    assert gq.scaled_linear(x, w).tobytes() == gq.scaled_linear(x, w, kernel="cpu:doubles").tobytes()


def test_sums_of_16_bits_beyond_what_doubles_hold():
    k = (1 << 21) + 4097
    x = gq.ScaledArray(np.full((1, k), 65535, np.uint16), np.float32(1), "uint16", (None, None))
    w = gq.ScaledArray(np.full((2, k), 65535, np.uint16), np.float32(1), "uint16", (None, None))
    assert (gq.scaled_linear(x, w) == np.float32(k * 65535**2)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k"), [("int8_full", 131071), ("int8_full", 131072), ("int8_full", 300001), ("uint8", 131072)]
)
def test_sums_at_the_end_of_int32_and_beyond(name, k):
    code = gq.codes[name]
    low = int(code.min) if code.min else 255
    x, w = (
        gq.ScaledArray(np.full((n, k), low, code.dtype), np.float32(1), code, (None, None)) for n in (2, 17)
    )
    assert (gq.scaled_linear(x, w, kernel="cpu:tiles") == np.float32(k * low * low)).all()
    if k * max(code.max, -code.min) ** 2 >= 2**31:
        with pytest.raises(UnsupportedError, match="int32 ends at"):
            gq.scaled_linear(x, w, accumulate="int32")
    other = gq.ScaledArray(np.full((1, k), 127, code.dtype), np.float32(1), code, (1, None))
    mixed = gq.scaled_linear(other, w[:1], kernel="cpu:tiles")
    assert mixed == np.float32(127 * low * k)


def test_floats_are_near_the_oracle(fresh, rounds):
    for _ in rounds(2):
        x, w = pair(fresh, ("e4m3", "e5m2"), zeros=False)
        oracle = gq.reference.scaled_linear(x, w)
        for kernel in ("cpu:naive", "cpu:dequant", *["cpu:lines"][: len(x) <= 16], *PAIRS[: wide(x, w)]):
            y = gq.scaled_linear(x, w, kernel=kernel)
            if y.size:
                near = 1e-5 * np.abs(oracle).mean() + 1e-6 * terms(x, w)
                assert np.abs(y - oracle).mean() <= near, (kernel, x, w)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity_propagate(fresh):
    x, w = operand(fresh, 3, 256, "e5m2", (1, 128)), operand(fresh, 5, 256, "e5m2", (128, 128))
    codes = x.codes.copy()
    codes[0, 7], codes[1, 200] = 0x7E, 0x7C
    x = gq.ScaledArray(codes, x.scales, "e5m2", (1, 128))
    for kernel in ("cpu:naive", "cpu:dequant", "cpu:lines", *PAIRS):
        y = gq.scaled_linear(x, w, kernel=kernel)
        assert np.isnan(y[0]).all()
        assert not np.isfinite(y[1]).any()
        assert np.isfinite(y[2]).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_code_of_weights_counts_where_it_is(name, fresh):
    """All 256 of them, each at places of its own: NaN in a row of weights, and in no other."""
    code, k = gq.codes[name], int(fresh.integers(65, 400))
    codes = np.zeros((256, k), np.uint8)
    codes[np.arange(256), fresh.integers(0, k, 256)] = np.arange(256)
    for tile in ((1, None), (16, 32)):
        scales = fresh.uniform(0.5, 2, tiling(tile, 256, k).shape).astype(np.float32)
        w = gq.ScaledArray(codes, scales, code, tile)
        for m in (1, 2, 3, 5):
            x = gq.quantize_scaled(fresh.uniform(0.5, 1, (m, k)), name, (1, None))
            want = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
            y = gq.scaled_linear(x, w, kernel="cpu:lines")
            assert np.allclose(y, want, rtol=1e-6, atol=0, equal_nan=True)


def test_chunks_of_32_differ_where_float32_ends(fresh):
    few = [operand(fresh, n, 1024, "int8_full", (1, None)) for n in (3, 5)]
    assert gq.scaled_linear(*few, accumulate="fp32_chunks").tobytes() == gq.scaled_linear(*few).tobytes()
    many = [
        gq.ScaledArray(
            fresh.integers(60, 128, (n, 8192)).astype(np.int8), np.ones((n, 1), "f4"), "int8", (1, None)
        )
        for n in (4, 6)
    ]
    exact, rounded = gq.scaled_linear(*many), gq.scaled_linear(*many, accumulate="fp32_chunks")
    assert (exact != rounded).any()
    np.testing.assert_allclose(rounded, exact, rtol=1e-5)
    real = np.zeros((4, 6), np.float32)
    for start in range(0, 8192, 32):
        a, b = (s.codes[:, start : start + 32].astype(np.int32) for s in many)
        real += (a @ b.T).astype(np.float32)
    np.testing.assert_array_equal(rounded, real)
    with_zeros = [operand(fresh, n, 100, "uint8", (1, 32), zeros=True) for n in (3, 4)]
    found = gq.scaled_linear(*with_zeros, accumulate="fp32_chunks")
    off = np.abs(found - gq.reference.scaled_linear(*with_zeros))
    assert off.max() <= 2e-6 * terms(*with_zeros)


def test_what_each_request_is_served_by(matrix_unit):
    matrix_unit(False)

    def served(x, w, accumulate=None, m=17):
        problem = ScaledLinear(Operand(x, 1, 128), Operand(w, 128, 128), m, 64, 256, accumulate, device="cpu")
        return choose(problem).name

    assert served("int8", "int8") == served("uint8", "int8_full", "int32") == "cpu:tiles"
    floats = ScaledLinear(Operand("e4m3", 1, 128), Operand("e4m3", 128, 128), 17, 64, 256, device="cpu")
    paired = float_multiply.refused() is None and choice.scaled_order(floats) == NOTHING
    assert served("int8", "int8", "float32") == "cpu:dequant"
    assert served("e4m3", "e4m3") == ("cpu:pairs" if paired else "cpu:dequant")
    assert served("e4m3", "e4m3", m=16) == ("cpu:pairs" if paired else "cpu:lines")
    assert served("e4m3", "e4m3", m=2) == ("cpu:pairs" if paired else "cpu:lines")
    assert served("int16", "int8") == "cpu:doubles"
    assert served("int8", "int8", "fp32_chunks") == "cpu:chunks"


def test_operands_of_any_strides(fresh):
    k = 200
    big = fresh.integers(-127, 128, (40, 2 * k)).astype(np.int8)
    scales = fresh.uniform(0.01, 0.1, (20, 2)).astype(np.float32)
    plain = gq.ScaledArray(np.ascontiguousarray(big[:20, :k]), scales, "int8", (1, 128))
    wanted = gq.scaled_linear(plain[:3], plain)
    for codes in (
        big[:20, :k], np.asfortranarray(big[:20, :k]),
        np.repeat(big[:20, :k], 2, axis=1)[:, ::2], big[:20, :k][::-1].copy()[::-1],
    ):  # fmt: skip
        same = gq.ScaledArray(codes, np.asfortranarray(scales), "int8", (1, 128))
        for kernel in EXACT:
            assert gq.scaled_linear(same[:3], same, kernel=kernel).tobytes() == wanted.tobytes()
    seed = gq.ScaledArray(big.T[:k, :7].T, np.float32(0.5), "int8", (None, None))  # weights [K, N] as a view
    assert (gq.scaled_linear(plain, seed) == gq.scaled_linear(plain, seed.copy())).all()


def test_weights_that_change_are_laid_out_again(fresh):
    codes = fresh.integers(-127, 128, (20, 64)).astype(np.int8)
    w = gq.ScaledArray(codes, np.ones((20, 1), np.float32), "int8", (1, None))
    x = gq.ScaledArray(np.eye(3, 64, dtype=np.int8), np.ones((3, 1), np.float32), "int8", (1, None))
    assert (gq.scaled_linear(x, w) == codes[:, :3].T).all()
    codes[5, 1] = 99
    w.scales[6] = 2
    assert gq.scaled_linear(x, w)[1, 5] == 99
    assert gq.scaled_linear(x, w)[2, 6] == 2.0 * codes[6, 2]


def test_bias_dtype_out_and_requantize(fresh):
    x, w = operand(fresh, 6, 128, "int8", (1, None)), operand(fresh, 20, 128, "int8", (1, None))
    bias = fresh.standard_normal(20).astype(np.float32)
    plain = gq.scaled_linear(x, w)
    np.testing.assert_array_equal(gq.scaled_linear(x, w, bias=bias), plain + bias)
    out = np.empty((6, 20), np.float16)
    assert gq.scaled_linear(x, w, out=out) is out
    np.testing.assert_array_equal(out, plain.astype(np.float16))
    s = gq.scaled_linear(x, w, requantize=("int8", 0.5))
    np.testing.assert_array_equal(s.codes, gq.codes["int8"].encode(plain / np.float32(0.5)))
    assert (x @ w.T).tobytes() == plain.tobytes()


@pytest.mark.parametrize("shape", [(), (1, 1), (1, 5), (0, 1), (0, 5)])
def test_an_empty_result_is_requantized_with_any_scales(fresh, shape):
    x, w = operand(fresh, 6, 128, "int8", (1, None))[:0], operand(fresh, 5, 128, "int8", (1, None))
    s = gq.scaled_linear(x, w, requantize=("int8", np.ones(shape, np.float32)))
    assert (s.shape, s.code.name, np.asarray(s).shape) == ((0, 5), "int8", (0, 5))


@pytest.mark.parametrize("code", ["uint8", "uint16"])
@pytest.mark.parametrize("m", [1, 7, 64])
def test_floats_become_codes_without_a_sign_with_zero_points(fresh, code, m):
    wide = fresh.standard_normal((33, 256), np.float32)
    w = gq.quantize_scaled(wide, code, (1, None), zeros=True)
    three = gq.stack([w, w, w])
    for _ in range(4):  # the later ones by what is kept of the first
        x = fresh.standard_normal((m, 256), np.float32)
        y = gq.scaled_linear(x, w)
        assert gq.nmse(y, x @ wide.T) < 3e-4
        ids = fresh.integers(0, 3, (m, 1))
        assert np.array_equal(gq.expert_linear(x, three, ids)[:, 0], y)
        x = np.abs(x)  # needs no zero point: the codes are those under plain scales
        assert np.array_equal(gq.scaled_linear(x, w), gq.quantize_scaled(x, code, (1, None)) @ w.T)
    assert gq.diagnose(gq.scaled_linear(-x, w), -x, w).ok
    for axis in (0, None):
        s = gq.parallel.shard(w, ["cpu", "cpu"], axis=axis)
        assert np.array_equal(-x @ s.T, -x @ w.T)
    told = gq.scaled_linear(-x, w, activations=(code, (1, None)))  # as it is said: without
    assert np.array_equal(told, gq.quantize_scaled(-x, code, (1, None)) @ w.T)


def test_requantize_takes_scales_and_finds_none(fresh):
    x, w = operand(fresh, 6, 128, "int8", (1, None)), operand(fresh, 5, 128, "int8", (1, None))
    with pytest.raises(gq.GGMLQError, match="scales of a result are not computed"):
        gq.scaled_linear(x, w, requantize=("int8", None))


def test_the_oracle_says_what_does_not_fit(fresh):
    w = operand(fresh, 6, 128, "e4m3", (1, 128))
    for x, of, words in (
        (np.ones((2, 127)), w, "last axis of both is K"),
        (np.float64(1), w, "last axis of both is K"),
        (np.ones((2, 128)), w[0], r"is 1-D; .* pass w.reshape"),
        (w, w.reshape(2, 3, 128), r"is 3-D; .* pass w\[e\]"),
        (w, np.ones((6, 128)), "must be a ScaledArray"),
    ):
        with pytest.raises(gq.GGMLQError, match=words):
            gq.reference.scaled_linear(x, of)


@pytest.mark.parametrize(
    ("kind", "dot"), [(AVX512, "vnni512"), (AVX2, "avx2"), (DOTPROD, "sdot"), (PLAIN, "plain")]
)
def test_each_cpu_has_its_dot_product_and_shifts(kind, dot):
    def form(x, w):
        return form_of(ScaledLinear(Operand(x, 1, 64), Operand(w, 1, 64), 1, 16, 64, device="cpu"), kind)

    assert form("int8", "int8").dot == dot
    assert form("int8_full", "int8").dot == (dot if dot != "avx2" else "avx2 full")
    assert w_shift(Operand("int8", 1, 64), kind) == (128 if kind.unsigned else 0)
    assert form("uint8", "int8").x_zeros
    assert not form("int8", "int8").x_zeros


def test_how_k_is_cut(fresh):
    for _ in range(300):
        k, group = int(fresh.integers(1, 400000)), int(fresh.integers(1, 400000))
        x, w = (Operand(str(fresh.choice(["int8", "uint8"])), 1, min(group, k)) for _ in range(2))
        problem = ScaledLinear(x, w, 1, 16, k, device="cpu")
        cut = cut_of(problem)
        assert cut.groups == math.ceil(k / cut.group)
        assert cut.chunk * cut.chunks >= cut.group > cut.chunk * (cut.chunks - 1)
        assert cut.chunk * problem.largest_sum / problem.group <= 2**31 - 1
        assert 4 * cut.fours >= cut.chunk


OTHER = """
import sys
import numpy as np, ggmlq as gq
from ggmlq.cpu.machine.target import target
print(target().dot)
r = np.random.default_rng(int(sys.argv[1]))
for a, b, c in (("int8", "int8", 128), ("int8_full", "int8_full", None), ("uint8", "int8", 128)):
    made = []
    for m, n in ((7, a), (18, b)):
        code = gq.codes[n]
        codes = r.integers(int(code.min), int(code.max) + 1, (m, 300)).astype(code.dtype)
        scales = r.uniform(0.1, 1, (m, 3 if c else 1)).astype("f4")
        made.append(gq.ScaledArray(codes, scales, n, (1, c)))
    x, w = made
    x.codes[0], w.codes[0] = int(gq.codes[a].min), int(gq.codes[b].min)
    assert (gq.scaled_linear(x, w) == gq.scaled_linear(x, w, kernel="cpu:naive")).all(), (a, b)
"""
X86 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+cx16,+popcnt"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are those of x86")
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("features", "dot"), [(X86 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2", "avx2"), (X86, "plain")]
)
def test_products_on_cpus_without_avx512(features, dot, fresh):
    env = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    child = subprocess.run(
        [sys.executable, "-c", OTHER, str(fresh.integers(1 << 30))], env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == dot


@pytest.mark.parametrize("kernel", ["auto", *EXACT])
@pytest.mark.parametrize("tile", [(1, None), (1, 64)])
@pytest.mark.parametrize(("name", "zeros"), [("int8", False), ("uint8", True), ("int16", False)])
def test_not_a_number_stays_one(name, zeros, tile, kernel, fresh):
    """A row of activations with a NaN has no finite product, nor has a channel of weights with one."""
    x, w = fresh.standard_normal((5, 128), np.float32), fresh.standard_normal((24, 128), np.float32)
    x[1, 70], w[7, 3] = np.nan, -np.nan
    a, b = (gq.quantize_scaled(v, name, tile, zeros=zeros) for v in (x, w))
    if name == "int16" and kernel == "cpu:tiles":
        kernel = "auto"
    lost = np.isnan(gq.scaled_linear(a, b, kernel=kernel))
    want = np.zeros((5, 24), bool)
    want[1], want[:, 7] = True, True
    assert (lost == want).all()
    assert (np.isnan(gq.reference.scaled_linear(a, b)) == want).all()
    ours = np.isnan(gq.scaled_linear(x, gq.quantize_scaled(np.nan_to_num(w), name, tile, zeros=zeros)))
    assert (ours.all(axis=1) == want[:, 0]).all()
    with pytest.raises(gq.GGMLQError, match=r"x\[1, 70\] is nan"):
        gq.quantize_scaled(x, name, tile, zeros=zeros, check_finite=True)
