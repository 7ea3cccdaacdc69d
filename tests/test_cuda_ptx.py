"""What the wrapped instructions mean in plain Python, and (with a GPU) that this is what they do."""

from __future__ import annotations

import operator
import re
import sys
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
import quick_typing
from numba.cuda.descriptor import cuda_target

from ggmlq.codes import CODES
from ggmlq.cuda.driver import device, dialect
from ggmlq.cuda.driver.dialect import CORE, plain_result, quick_inlining, word_beside
from ggmlq.cuda.driver.launch import FAMILIES, Kernel, array
from ggmlq.cuda.intrinsics import codes8, ptx
from ggmlq.cuda.intrinsics.language import cuda, float32, int32, int64, ir, types, uint32, uint64

TWO = 2
SPECIAL = [0.0, -0.0, 1.5, -2.5, 0.5, -0.5, 1e-40, -1e-45, 3e38, -3e38, 65504.0, 65520.0, 2.0**31, -(2.0**31)]
FLOATS = np.array([*SPECIAL, np.inf, -np.inf, np.nan, 127.5, -126.5, 1 / 3, 2.0**-25], np.float32)
OF_ONE_FLOAT = {
    "nearest_even": int32, "truncated": int32, "half_bits": uint32, "bits_of": uint32,
    "bfloat_bits": uint32, "reciprocal": float32,
}  # fmt: skip
OF_TWO_FLOATS = ("mul", "add", "sub", "div", "larger", "smaller")
RANDOM = np.random.default_rng()


def some_floats(n=400):
    bits = RANDOM.integers(0, 1 << 32, n, np.uint32).view(np.float32)
    return np.concatenate([FLOATS, bits, RANDOM.normal(0, 100, n).astype(np.float32)])


def test_meanings():
    a, b = RANDOM.integers(-128, 128, (2, 4), np.int8)
    want = 7 + int(a.astype(int) @ b.astype(int))
    assert ptx.dp4a.meaning(a.view(np.int32)[0], b.view(np.int32)[0], np.int32(7)) == want
    assert [ptx.nearest_even.meaning(np.float32(v)) for v in (0.5, 1.5, -2.5, np.nan, 1e30)] == [
        0, 2, -2, 0, 2**31 - 1,
    ]  # fmt: skip
    assert ptx.truncated.meaning(np.float32(-1.9)) == -1
    assert ptx.half_bits.meaning(np.float32(1)) == 0x3C00
    assert ptx.half_value.meaning(np.uint32(0x3C00)) == 1
    assert ptx.bfloat_bits.meaning(np.float32(1)) == 0x3F80
    assert ptx.div.meaning(np.float32(1), np.float32(0)) == np.inf
    assert ptx.float_of.meaning(np.uint32(0x4B400000)) == 12582912
    assert ptx.fma.meaning(np.float32(3), np.float32(4), np.float32(5)) == 17
    assert ptx.reciprocal.meaning(np.float32(4)) == 0.25
    assert ptx.larger.meaning(np.nan, np.float32(2)) == ptx.smaller.meaning(np.float32(2), np.nan) == 2
    just_above = ptx.fma_up.meaning(np.float32(2**-30), np.float32(1), np.float32(1))
    assert just_above == np.nextafter(np.float32(1), np.float32(2))
    assert ptx.low_bytes.meaning(np.uint32(0x12345678), np.uint32(0x9ABCDEF0)) == 0xF078
    assert ptx.high_bytes.meaning(np.uint32(0x12345678), np.uint32(0x9ABCDEF0)) == 0x9A12
    assert ptx.low_halves.meaning(np.uint32(0x12345678), np.uint32(0x9ABCDEF0)) == 0xDEF05678
    with pytest.raises(NotImplementedError, match="needs a GPU"):
        ptx.load16.meaning(0)


def run(function, takes, returns, operands):
    """Apply one instruction to whole arrays on the GPU."""
    import cupy

    if len(takes) == 1:

        def kernel(a, y):
            i = cuda.grid(1)
            if i < y.size:
                y[i] = function(a[i])
    elif len(takes) == 2:

        def kernel(a, b, y):
            i = cuda.grid(1)
            if i < y.size:
                y[i] = function(a[i], b[i])
    else:

        def kernel(a, b, c, y):
            i = cuda.grid(1)
            if i < y.size:
                y[i] = function(a[i], b[i], c[i])

    y = cupy.zeros(len(operands[0]), str(returns))
    parameters = [array(kind, 1) for kind in (*takes, returns)]
    made = Kernel(f"test {function._name}", kernel, *parameters, threads=64, least=(8, 0))
    made((-(-len(y) // 64),), (64,), *map(cupy.asarray, operands), y)
    return y.get()


def assert_meant(function, takes, returns, operands):
    got = run(function, takes, returns, operands)
    with np.errstate(all="ignore"):
        want = np.array([function.meaning(*each) for each in zip(*operands, strict=True)], got.dtype)
    assert np.array_equal(got, want, equal_nan=True), function._name


@pytest.mark.cuda
def test_instructions_of_one_float(cupy):
    x = some_floats()
    for name, returns in OF_ONE_FLOAT.items():
        sane = x[~np.isnan(x)] if name in ("half_bits", "bits_of") else x  # a NaN has many bits
        assert_meant(getattr(ptx, name), [float32], returns, [sane])


@pytest.mark.cuda
def test_instructions_of_more(cupy):
    x = some_floats()
    for name in OF_TWO_FLOATS:
        assert_meant(getattr(ptx, name), [float32] * 2, float32, [x, RANDOM.permutation(x)])
    words = RANDOM.integers(-(1 << 31), 1 << 31, (3, 500)).astype(np.int32)
    words[2] >>= 2
    assert_meant(ptx.dp4a, [int32] * 3, int32, list(words))
    words = words[:2].view(np.uint32)
    assert_meant(ptx.low_halves, [uint32] * 2, uint32, list(words))
    for function in (ptx.low_bytes, ptx.high_bytes):
        got = run(function, [uint32] * 2, uint32, list(words)) & 0xFFFF
        assert np.array_equal(got, [function.meaning(a, b) for a, b in words.T])
    u = np.abs(RANDOM.normal(0, 1, (2, 500)).astype(np.float32))
    assert_meant(ptx.fma_up, [float32] * 3, float32, [*u, np.ones(500, np.float32)])
    assert_meant(ptx.half_value, [uint32], float32, [np.arange(65536, dtype=np.uint32)])


@cuda.jit(device=True, inline="always")
def twice_or_less(x, most):
    y = x + x
    while y > most:
        y -= most
    return y


@cuda.jit(device=True, inline="always")
def far(x, most):
    return twice_or_less(x, most) * twice_or_less(x - most, most) if x else most


def inlined(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = far(x[i], y[i]) + far(y[i], x[i])


def test_quick_inlining_and_typing_make_the_same(monkeypatch):
    inlining, ssa, texts = sys.modules[f"{CORE}.inline_closurecall"], sys.modules[f"{CORE}.ssa"], []
    usual = inlining.InlineWorker.inline_function, ssa._run_ssa, ssa._run_block_rewrite
    with quick_inlining():
        assert ssa._run_ssa is not usual[1], "this numba-cuda inlines in another way"
    assert (inlining.InlineWorker.inline_function, ssa._run_ssa, ssa._run_block_rewrite) == usual
    for place, name, slow in (
        (dialect, "quick_inlining", nullcontext),
        (quick_typing.Function, "get_call_type", quick_typing.usual),
        (None, "", None),
    ):
        kernel = Kernel("inlined", inlined, array(float32, 1), array(float32, 1), threads=32)
        texts.append(re.sub(r"(?<=inlined)B\d+v\d+", "", kernel.ptx((9, 0))))  # Numba counts them
        if place is not None:
            monkeypatch.setattr(place, name, slow)
    assert texts[0] == texts[1] == texts[2]


def with_casts(x, n, y):
    i, stages = uint32(cuda.threadIdx.x), uint32(0)
    while i < uint32(n):
        at = uint32(uint32(i * uint32(4 * TWO)) + uint32(8 * TWO))
        y[i] = x[at >> uint32(1)] + uint64(stages) * uint64(4)
        i, stages = uint32(i + uint32(32)), uint32(stages ^ uint32(1))


def with_plain_integers(x, n, y):
    i, stages = uint32(cuda.threadIdx.x), 0
    while i < n:
        at = uint32(uint32(i * (4 * TWO)) + 8 * TWO)
        y[i] = x[at >> 1] + uint64(stages) * 4
        i, stages = uint32(i + 32), uint32(stages ^ 1)


def test_plain_integers_are_words_beside_words():
    of = (array(uint64, 1), uint32, array(uint64, 1))
    texts = [
        re.sub(r"\w*(?:_Z|cudapy)\w*", "", Kernel("k", function, *of, threads=32).ptx((9, 0)))
        for function in (with_casts, with_plain_integers)
    ]
    assert texts[0] == texts[1]


def test_arithmetic_on_plain_integers_is_compiled_as_numba_does():
    context, of = cuda_target.target_context, types.literal
    context.refresh()
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
    function = ir.Function(ir.Module("casts"), kind, "casts")
    builder, (result,) = ir.IRBuilder(function.append_basic_block()), function.args
    assert context.cast(builder, result, plain_result(operator.add, of(8), of(1)), int64) is result
    assert context.cast(builder, result, of(9), int64).constant == 9


def test_words_beside_plain_integers():
    of, add = types.literal, operator.add
    assert word_beside(uint32, of(8)) == uint32
    assert word_beside(of(0), uint64) == uint64
    for right in (of(-1), of(1 << 32), uint32, int32, float32):
        assert word_beside(uint32, right) is None
    assert word_beside(int32, of(8)) is None
    assert plain_result(operator.mul, of(8), of(3)).literal_value == 24
    assert plain_result(operator.isub, of(3), of(8)).literal_value == -5
    assert word_beside(plain_result(operator.mul, of(8), of(3)), uint32) == uint32
    assert plain_result(operator.floordiv, of(8), of(0)) is plain_result(operator.lt, of(8), of(9)) is None
    context = cuda_target.typing_context  # of others, who read plain integers as Numba does
    outside = context.resolve_function_type(context.resolve_value_type(add), (uint32, of(8)), {})
    assert outside.return_type == int64


def halves(word, widened):
    """The four halves that a word of codes becomes."""
    return np.array(widened(np.int32(word)), np.uint32).view(np.float16)


def raised(word):
    return codes8.lower_raised.meaning(word), codes8.upper_raised.meaning(word)


def by_bits(word):
    """The steps of halves_of_e4m3_by_bits in plain Python."""
    found = []
    for r in map(int, raised(word)):
        moved = (r & 0x80008000) | (r >> 1 & 0x3F803F80)
        carried = ((r & 0x7F007F00) + 0x01000100) & 0x80008000
        both = np.array([moved | carried >> 1], np.uint32)
        found.append(codes8.product_of_halves.meaning(both[0], codes8.TIMES_256))
    return found


@pytest.mark.parametrize("code", ["e4m3", "e5m2"])
def test_every_code_is_a_half(code, fresh):
    """All codes at all four places, and no place touches another."""
    codes = fresh.permutation(np.repeat(np.arange(256, dtype=np.uint8), 4)).reshape(-1, 4)
    for four in codes:
        word = four.view(np.int32)[0]
        found = halves(word, raised if code == "e5m2" else by_bits)
        np.testing.assert_array_equal(found.astype(np.float32), CODES[code].decode(four))


def test_dp4a_of_either_sign(fresh):
    for a, b in (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")):
        x, y = (fresh.integers(0, 256, 4, np.uint8) for _ in range(2))
        kinds = {"s8": np.int8, "u8": np.uint8}
        want = 5 + int(x.view(kinds[a]).astype(int) @ y.view(kinds[b]).astype(int))
        assert codes8.dp4a(a, b).meaning(x.view(np.int32)[0], y.view(np.int32)[0], np.int32(5)) == want


@pytest.mark.cuda
def test_the_instruction_widens_as_the_bits_do(cupy):
    """``cvt.rn.f16x2.e4m3x2`` and the bit trick, over all codes."""
    if device.capability() < (8, 9):
        pytest.skip("GPUs before 8.9 do not have the instruction")

    def kernel_of(widen):
        def widened(words, out):
            i = cuda.grid(1)
            if i < words.size:
                v = widen(words[i])
                out[i, 0], out[i, 1] = v[0], v[1]

        kinds = array(int32, 1), array(uint32, 2)
        return Kernel(f"widened {widen}", widened, *kinds, threads=64, least=(8, 9))

    words = cupy.asarray(np.arange(256, dtype=np.uint8).view(np.int32))
    for widen in (codes8.halves_of_e4m3, codes8.halves_of_e4m3_by_bits):
        out = cupy.zeros((64, 2), np.uint32)
        kernel_of(widen)((1,), (64,), words, out)
        found = out.get().view(np.float16).reshape(-1).astype(np.float32)
        np.testing.assert_array_equal(found, CODES["e4m3"].decode(np.arange(256, dtype=np.uint8)))


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("number", range(12))
def test_no_floats_of_64_bits_in_attention(number):
    """A word beside a signed number would become one, as in NumPy: the least row would be a float."""
    from ggmlq.cuda.kernels.attention import mma

    cases = [plan for (plan,) in FAMILIES["ggmlq.cuda.kernels.attention.mma.kernel"].cases if plan.options]
    plan = cases[number * len(cases) // 12]
    assert ".f64" not in mma.kernel(plan).ptx((8, 0)), plan
