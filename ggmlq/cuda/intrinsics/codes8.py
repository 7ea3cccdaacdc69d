"""Instructions on codes of 8 bits: products of bytes, and bytes widened to halves.

assembly.py says how to read a wrapper. All ``mma`` here have operands alike, lane = 4 g + t: of the wide
one a0, a2 are row g, a1, a3 row g + 8, a2 and a3 the later columns; b0, b1 are column g. The four sums
are those of row g, columns 2 t and 2 t + 1, and of row g + 8.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .assembly import f32, i32, instruction, only_on_a_gpu, u32, u64
from .atoms import inlined
from .language import types

OPERANDS = "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
FOUR_WORDS, FOUR_FLOATS = types.UniTuple(i32, 4), types.UniTuple(f32, 4)


# --- integers ---------------------------------------------------------------------------------


@cache
def integer_mma(a: str, b: str) -> Any:
    """The ``mma`` of [16, 32] times [32, 8] bytes, "s8" or "u8", with int32 sums; from capability 8.0."""

    @instruction(f"mma.sync.aligned.m16n8k32.row.col.s32.{a}.{b}.s32 {OPERANDS}", FOUR_WORDS, *(i32,) * 10)
    def mma(
        a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    return mma


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


# --- floats -----------------------------------------------------------------------------------


@instruction(
    f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {OPERANDS}",
    FOUR_FLOATS, *(u32,) * 6, *(f32,) * 4,
)  # fmt: skip
def mma_f16(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
) -> Any:  # fmt: skip
    """[16, 16] times [16, 8] halves, added to floats; from capability 8.0."""
    only_on_a_gpu()


@cache
def float_mma(a: str, b: str) -> Any:
    """The ``mma`` of [16, 32] times [32, 8] codes, "e4m3" or "e5m2", with float sums; from capability 8.9."""

    @instruction(
        f"mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32 {OPERANDS}",
        FOUR_FLOATS, *(i32,) * 6, *(f32,) * 4,
    )  # fmt: skip
    def mma(
        a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    return mma


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


@instruction("ld.global.nc.b32 $0, [$1];", i32, u64, effect=True)
def load4(address: Any) -> Any:
    """Four bytes that nothing writes meanwhile."""
    only_on_a_gpu()


@instruction("st.shared.f32 [$0], $1;", None, u32, f32, effect=True)
def put_float(address: Any, value: Any) -> Any:
    """Store one float in shared memory."""
    only_on_a_gpu()


# --- copies into shared memory ----------------------------------------------------------------


@instruction("cp.async.ca.shared.global [$0], [$1], 4;", None, u32, u64, effect=True)
def copy4(shared: Any, address: Any) -> Any:
    """Start to copy four bytes into shared memory; from capability 8.0."""
    only_on_a_gpu()


# --- sums in an array of a kernel -------------------------------------------------------------


def adder(mma: Any) -> Any:
    """The device function that adds a product of a[o] … and b[i] … to the four sums from d[j] on."""

    @inlined
    def add(d: Any, j: Any, a: Any, o: Any, b: Any, i: Any) -> None:
        v = mma(a[o], a[o + 1], a[o + 2], a[o + 3], b[i], b[i + 1], d[j], d[j + 1], d[j + 2], d[j + 3])
        d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]

    return add


# --- stores that a condition decides on, without a branch ---------------------------------------


@instruction(
    "{.reg .pred p; setp.ne.u32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}",
    None, u64, f32, f32, u32, effect=True,
)  # fmt: skip
def store_pair_if(address: Any, a: Any, b: Any, inside: Any) -> Any:
    """Store two floats at an address that is a multiple of eight, if ``inside`` is not 0."""
    only_on_a_gpu()


@instruction(
    "{.reg .pred p; setp.ne.u32 p, $2, 0; @p st.global.f32 [$0], $1;}", None, u64, f32, u32, effect=True
)
def store_if(address: Any, value: Any, inside: Any) -> Any:
    """Store one float, if ``inside`` is not 0."""
    only_on_a_gpu()
