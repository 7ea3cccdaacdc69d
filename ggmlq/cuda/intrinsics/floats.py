"""The kinds of floats that kernels read and write: sizes, pairs of 16-bit ones in a register, and stores.

A pair is a word: the first float in its low half. assembly.py says how to read a wrapper. Arithmetic on pairs
is for GPUs from capability 8.0 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import ptx
from .assembly import f32, instruction, u32
from .atoms import inlined
from .language import cuda, uint32

# Kinds of values with the bytes of one. There is no NumPy dtype for bfloat16: its bits are uint16.
KINDS = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
LEAST = {"float32": (7, 5), "float16": (7, 5), "bfloat16": (8, 0)}

# --- pairs of 16-bit floats -------------------------------------------------------------------


class Pairs(NamedTuple):
    """Instructions on pairs of one kind of 16-bit floats."""

    pair: Callable[[float], int]  # on the host: the bits of a pair with one number in both places
    narrowed: Any  # (low, high): two floats, each rounded to the nearest, ties to even
    sub: Any  # (a, b): differences; of bfloat16 from capability 9.0 on
    fma: Any  # (a, b, c): ``a * b + c`` of both, each rounded once
    fma_low: Any  # the same with the low ones of b and c for both, which the instruction itself picks
    fma_high: Any  # the same with the high ones

    @property
    def ones(self) -> Any:
        """The pair of ones."""
        return np.uint32(self.pair(1))


PICKED = (
    "{{.reg .b16 bl, bh, cl, ch; .reg .b32 b, c; mov.b32 {{bl, bh}}, $2; mov.b32 {{cl, ch}}, $3; "
    "mov.b32 b, {{{0}, {0}}}; mov.b32 c, {{{1}, {1}}}; fma.rn.{2} $0, $1, b, c;}}"
)


def _pairs(kind: str, pair: Any, values: Any, bits: Any) -> Pairs:
    """The instructions of PTX's ``kind``; ``values`` and ``bits`` give them a meaning in plain Python."""

    def sums(a: Any, b: Any, c: Any) -> Any:
        return bits(values(a) * values(b) + values(c))

    def both(half: Any) -> Any:
        return np.uint32(half & 0xFFFF | (half & 0xFFFF) << 16)

    @instruction(f"cvt.rn.{kind}.f32 $0, $2, $1;", u32, f32, f32)
    def narrowed(low: Any, high: Any) -> Any:
        return bits(np.array([low, high], np.float32))

    @instruction(f"sub.rn.{kind} $0, $1, $2;", u32, u32, u32)
    def sub(a: Any, b: Any) -> Any:
        return bits(values(a) - values(b))

    @instruction(f"fma.rn.{kind} $0, $1, $2, $3;", u32, u32, u32, u32)
    def fma(a: Any, b: Any, c: Any) -> Any:
        return sums(a, b, c)

    @instruction(PICKED.format("bl", "cl", kind), u32, u32, u32, u32)
    def fma_low(a: Any, b: Any, c: Any) -> Any:
        return sums(a, both(b), both(c))

    @instruction(PICKED.format("bh", "ch", kind), u32, u32, u32, u32)
    def fma_high(a: Any, b: Any, c: Any) -> Any:
        return sums(a, both(b >> 16), both(c >> 16))

    return Pairs(pair, narrowed, sub, fma, fma_low, fma_high)


def _half_pair(value: float) -> int:
    bits = int(np.float16(value).view(np.uint16))
    return bits << 16 | bits


def _half_values(bits: Any) -> Any:
    return np.array([bits], np.uint32).view(np.float16).astype(np.float64)


def _half_bits(values: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16).view(np.uint32)[0]


def _bfloat_pair(value: float) -> int:
    bits = int(np.float32(value).view(np.uint32))
    assert not bits & 0xFFFF, f"{value} is no bfloat16"
    return bits >> 16 | bits


def _bfloat_values(bits: Any) -> Any:
    words = np.array([np.uint32(bits) << np.uint32(16), np.uint32(bits) & 0xFFFF0000], np.uint32)
    return words.view(np.float32).astype(np.float64)


def _bfloat_bits(values: Any) -> Any:
    """The nearest pair, of sums that are rounded to float32 before: in plain Python twice."""
    bits = np.asarray(values).astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = np.where(np.isnan(values), np.uint64(0x7FFF0000), bits + (0x7FFF + (bits >> 16 & 1)))
    return np.uint32(bits[0] >> 16 | bits[1] & 0xFFFF0000)


HALVES = _pairs("f16x2", _half_pair, _half_values, _half_bits)
BFLOATS = _pairs("bf16x2", _bfloat_pair, _bfloat_values, _bfloat_bits)
PAIRS = {"float16": HALVES, "bfloat16": BFLOATS}

# --- stores of results ------------------------------------------------------------------------


def storing(kind: str) -> Any:
    """The device function that stores 16 bytes of values of a kind, from v[i] on."""
    return store_floats if kind == "float32" else _storing_halves(kind == "bfloat16")


@inlined
def store_floats(at: Any, v: Any, i: Any) -> None:
    """Four floats as they are."""
    bits_of = ptx.bits_of
    ptx.store16(at, bits_of(v[i]), bits_of(v[i + 1]), bits_of(v[i + 2]), bits_of(v[i + 3]))


def _storing_halves(bfloat: bool) -> Any:
    half_bits, narrowed, store16 = ptx.half_bits, BFLOATS.narrowed, ptx.store16

    @inlined
    def store_halves(at: Any, v: Any, i: Any) -> None:
        words = cuda.local.array(4, uint32)
        for w in range(4):
            low, high = v[i + 2 * w], v[i + 2 * w + 1]
            if bfloat:
                words[w] = narrowed(low, high)
            else:
                words[w] = half_bits(low) | half_bits(high) << 16
        store16(at, words[0], words[1], words[2], words[3])

    return store_halves
