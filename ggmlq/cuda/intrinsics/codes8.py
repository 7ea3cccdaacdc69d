"""8-bit codes: made of floats four at a time, multiplied by dp4a, and FP8 widened to halves.

assembly.py says how to read a wrapper. The conversions between floats and codes of FP8 are for GPUs from
capability 8.9 on; elsewhere codes are made with integers, and widened by their bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from . import ptx
from .assembly import f32, i32, instruction, u32
from .atoms import inlined
from .lane import ALL_LANES
from .language import cuda, float32, int32, types, uint32

# --- codes of floats --------------------------------------------------------------------------


def _four(kind: str) -> str:
    pair = f"cvt.rn.satfinite.{kind}x2.f32"
    return f"{{.reg .b16 l, h; {pair} l, $2, $1; {pair} h, $4, $3; mov.b32 $0, {{l, h}};}}"


@instruction(_four("e4m3"), u32, f32, f32, f32, f32)
def four_e4m3(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four floats as e4m3, a in the lowest byte; beyond ±448 they saturate, NaN is 0x7F."""
    return _meant(a, b, c, d, 3, 7, 0x7E)


@instruction(_four("e5m2"), u32, f32, f32, f32, f32)
def four_e5m2(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four floats as e5m2, a in the lowest byte; beyond ±57344 they saturate, NaN is 0x7F."""
    return _meant(a, b, c, d, 2, 15, 0x7B)


def _meant(a: Any, b: Any, c: Any, d: Any, mantissa: int, bias: int, largest: int) -> Any:
    """The word of codes, computed from the spacing of codes at each magnitude."""
    word = 0
    for place, value in enumerate(np.array([a, b, c, d], np.float32).astype(np.float64)):
        size = min(abs(value), 1e30)
        exponent = max(int(np.frexp(size)[1]) - 1, 1 - bias) if size else 1 - bias
        code = 0x7F
        if not np.isnan(value):
            code = int(np.rint(np.ldexp(size, mantissa - exponent))) + (exponent + bias - 1 << mantissa)
            code = min(code, largest) | 0x80 * int(np.signbit(value))
        word |= code << 8 * place
    return np.uint32(word)


@instruction(
    "{.reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}", types.UniTuple(f32, 2), u32
)
def half_values(pair: Any) -> Any:
    """Two halves of a word as floats, the low one first."""
    both = np.array([pair], np.uint32).view(np.float16).astype(np.float32)
    return both[0], both[1]


@instruction("cvt.rni.f32.f32 $0, $1;", f32, f32)
def whole(value: Any) -> Any:
    """The nearest whole number, ties to even, as a float."""
    return np.rint(np.float32(value))


@inlined
def size_of(value: Any) -> Any:
    """The bits of a float without the sign: they are ordered as magnitudes, NaN above all."""
    return uint32(ptx.bits_of(value) & 0x7FFFFFFF)  # narrowed: uint32 & uint32 is uint64 to Numba


@inlined
def largest_size(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The largest magnitude among four values of each of eight threads; NaN if there is one."""
    size = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
    for step in (4, 2, 1):
        size = max(size, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(size), step)))
    return ptx.float_of(size)


@inlined
def four_bytes(q0: Any, q1: Any, q2: Any, q3: Any) -> Any:
    """The low bytes of four integers as a word."""
    return ptx.low_halves(ptx.low_bytes(uint32(q0), uint32(q1)), ptx.low_bytes(uint32(q2), uint32(q3)))


class FourCodes(NamedTuple):
    """Four codes of a thread, by the arithmetic q8, and the scale of the 32 values of eight threads."""

    scale: Any
    q0: Any
    q1: Any
    q2: Any
    q3: Any


@inlined
def _code(value: Any, per: Any) -> Any:
    return min(max(ptx.nearest_even(ptx.mul(value, per)), int32(-127)), int32(127))


@inlined
def four_codes(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """Codes of four values of each of eight threads: x · (127 / largest), to the nearest, ties to even."""
    largest = largest_size(v0, v1, v2, v3)
    d, per = ptx.div(largest, float32(127)), ptx.div(float32(127), largest)
    if size_of(largest) == 0:  # 127 / 0 is infinite, and 0 times that no number
        per = float32(0)
    return FourCodes(d, _code(v0, per), _code(v1, per), _code(v2, per), _code(v3, per))


# --- products of bytes ------------------------------------------------------------------------


@cache
def dp4a(a: str, b: str) -> Any:
    """The ``dp4a`` for bytes, "s8" or "u8" each: four products, added to c."""
    kinds = {"s8": ("s32", np.int8), "u8": ("u32", np.uint8)}
    (kind_a, bytes_a), (kind_b, bytes_b) = kinds[a], kinds[b]

    @instruction(f"dp4a.{kind_a}.{kind_b} $0, $1, $2, $3;", i32, i32, i32, i32)
    def product(a: Any, b: Any, c: Any) -> Any:
        x = np.array([a], np.int32).view(bytes_a).astype(np.int64)
        y = np.array([b], np.int32).view(bytes_b).astype(np.int64)
        return np.int64(c + (x * y).sum()).astype(np.int32)

    return product


# --- FP8 as halves ----------------------------------------------------------------------------


@instruction(
    "{.reg .b16 low, high; mov.b32 {low, high}, $2; "
    "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high;}",
    types.UniTuple(u32, 2), i32,
)  # fmt: skip
def halves_of_e4m3(word: Any) -> Any:
    """Four e4m3 as two pairs of halves, exactly; from capability 8.9."""
    return _as_bits(word)


def _raised(two: int) -> Any:
    return np.uint32((two & 0xFF) << 8 | (two & 0xFF00) << 16)


@instruction("prmt.b32 $0, $1, 0, 0x1404;", u32, i32)
def lower_raised(word: Any) -> Any:
    """Bytes 0 and 1 of a word, each the upper byte of a half."""
    return _raised(int(word))


@instruction("prmt.b32 $0, $1, 0, 0x3424;", u32, i32)
def upper_raised(word: Any) -> Any:
    """Bytes 2 and 3 of a word, each the upper byte of a half."""
    return _raised(int(word) >> 16)


@instruction("mul.rn.f16x2 $0, $1, $2;", u32, u32, u32)
def product_of_halves(a: Any, b: Any) -> Any:
    """Products of two pairs of halves."""
    x, y = (np.array([v], np.uint32).view(np.float16) for v in (a, b))
    return (x * y).view(np.uint32)[0]


TIMES_256 = np.uint32(0x5C005C00)


def _half_of_e4m3(raised: Any) -> Any:
    """The bits of e4m3 as those of halves: a bias of 15 for one of 7, and NaN with the highest exponent.

    Where the code is NaN, adding one to its lower seven bits carries into the sign's place.
    """
    shifted_bits = (raised & 0x80008000) | (raised >> 1 & 0x3F803F80)
    carried = ((raised & 0x7F007F00) + 0x01000100) & 0x80008000
    return product_of_halves(shifted_bits | carried >> 1, TIMES_256)


half_of_e4m3 = inlined(_half_of_e4m3)


@inlined
def halves_of_e4m3_by_bits(word: Any) -> Any:
    """Four e4m3 as two pairs of halves, exactly, on any GPU from capability 8.0."""
    return half_of_e4m3(lower_raised(word)), half_of_e4m3(upper_raised(word))


@inlined
def halves_of_e5m2(word: Any) -> Any:
    """Four e5m2 as two pairs of halves: each is the upper byte of one."""
    return lower_raised(word), upper_raised(word)


def _as_bits(word: Any) -> Any:
    return halves_of_e4m3_by_bits(word)


def widening(code: str, converts: bool) -> Any:
    """The device function that widens four codes to halves; ``converts``: the GPU has it for e4m3."""
    if code == "e5m2":
        return halves_of_e5m2
    return halves_of_e4m3 if converts else halves_of_e4m3_by_bits
