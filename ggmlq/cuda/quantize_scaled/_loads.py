"""Loads of rows: the floats of 16 bytes at once, or one float where rows are not aligned so."""

from __future__ import annotations

from typing import Any

from ..intrinsics import codes, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, int32, uint32

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # kinds of floats with the bytes of one
WIDE = 16  # bytes of a wide load


def floats_per_load(kind: str, wide: bool) -> int:
    """Floats of one load."""
    return WIDE // SIZES[kind] if wide else 1


def spreading(kind: str) -> Any:
    """The device function ``spread(words, w, v, i)``: four words from w on become floats from v[i] on."""
    if kind == "float32":

        @inlined
        def floats(words: Any, w: Any, v: Any, i: Any) -> None:
            for e in range(4):
                v[i + e] = ptx.float_of(words[w + e])

        return floats
    if kind == "float16":

        @inlined
        def halves(words: Any, w: Any, v: Any, i: Any) -> None:
            for e in range(4):
                pair = codes.half_values(words[w + e])
                v[i + 2 * e], v[i + 2 * e + 1] = pair[0], pair[1]

        return halves

    @inlined
    def bfloats(words: Any, w: Any, v: Any, i: Any) -> None:
        for e in range(4):
            v[i + 2 * e] = ptx.float_of(uint32(words[w + e] << uint32(16)))
            v[i + 2 * e + 1] = ptx.float_of(uint32(words[w + e] & uint32(0xFFFF0000)))

    return bfloats


@inlined
def words_into(words: Any, w: Any, at: Any) -> None:
    """16 bytes of memory as four words from w on."""
    four = codes.load_words(at)
    words[w], words[w + 1], words[w + 2], words[w + 3] = four[0], four[1], four[2], four[3]


def loading(kind: str, wide: bool) -> Any:
    """The device function ``load(at, v, i)``: the floats of one load from v[i] on."""
    spread = spreading(kind)
    if wide:

        @inlined
        def load_wide(at: Any, v: Any, i: Any) -> None:
            words = cuda.local.array(4, uint32)
            words_into(words, 0, at)
            spread(words, 0, v, i)

        return load_wide

    @inlined
    def load_one(at: Any, v: Any, i: Any) -> None:
        if kind == "float32":
            v[i] = ptx.load_float(at)
        elif kind == "float16":
            v[i] = ptx.half_value(codes.load2(at))
        else:
            v[i] = ptx.float_of(uint32(codes.load2(at) << uint32(16)))

    return load_one


@inlined
def larger_or_nan(a: Any, b: Any) -> Any:
    """The larger of a, which is never negative, and b; a NaN without a sign is the largest.

    As integers: so bits of such floats are ordered, and those of all with a sign lie below.
    """
    return ptx.float_of(uint32(max(int32(ptx.bits_of(a)), int32(ptx.bits_of(b)))))


@inlined
def without_sign(v: Any) -> Any:
    return ptx.float_of(uint32(ptx.bits_of(v) & uint32(0x7FFFFFFF)))


@inlined
def with_other_sign(v: Any) -> Any:
    return ptx.float_of(uint32(ptx.bits_of(v) ^ uint32(0x80000000)))


def extremes(count: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``widen(v, high, low)`` that extends the extremes so far by ``count`` floats.

    ``both``: of values the largest, and the magnitude of the least; otherwise the largest magnitude.
    ``keeps_nan``: one of them is NaN where any value is; otherwise NaN is passed over.
    """
    if keeps_nan:

        @inlined
        def widen_or_nan(v: Any, high: Any, low: Any) -> Any:
            for i in range(count):
                if both:
                    high, low = larger_or_nan(high, v[i]), larger_or_nan(low, with_other_sign(v[i]))
                else:
                    high = larger_or_nan(high, without_sign(v[i]))
            return high, low

        return widen_or_nan

    @inlined
    def widen(v: Any, high: Any, low: Any) -> Any:
        for i in range(count):
            if both:
                high, low = ptx.larger(high, v[i]), ptx.larger(low, -v[i])
            else:
                high = ptx.larger(high, abs(v[i]))
        return high, low

    return widen


def agreeing(lanes: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``agree(high, low)``: the extremes of ``lanes`` neighbours, a power of two."""
    steps, larger = lanes.bit_length() - 1, larger_or_nan if keeps_nan else ptx.larger

    @inlined
    def agree(high: Any, low: Any) -> Any:
        for i in range(steps):
            step = lanes >> i + 1
            high = larger(high, cuda.shfl_xor_sync(ALL_LANES, high, step))
            if both:
                low = larger(low, cuda.shfl_xor_sync(ALL_LANES, low, step))
        return high, low

    return agree
