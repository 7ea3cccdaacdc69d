"""Instructions that turn floats into 8-bit codes, four at a time, and that load and store words of codes.

assembly.py says how to read a wrapper. The conversions to floats of 8 bits are for GPUs from capability
8.9 on; elsewhere codes are made with integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import ptx
from .assembly import f32, instruction, only_on_a_gpu, u32, u64
from .atoms import inlined
from .lane import ALL_LANES
from .language import cuda, int32, types, uint32

# --- conversions ------------------------------------------------------------------------------


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


# --- memory -----------------------------------------------------------------------------------


@instruction("ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(u32, 4), u64, effect=True)
def load_words(address: Any) -> Any:
    """16 aligned bytes as four words."""
    only_on_a_gpu()


@instruction("ld.global.b32 $0, [$1];", u32, u64, effect=True)
def load4(address: Any) -> Any:
    """Load a word from memory."""
    only_on_a_gpu()


@instruction("ld.global.u16 $0, [$1];", u32, u64, effect=True)
def load2(address: Any) -> Any:
    """Two bytes as the low half of a word, the other is 0."""
    only_on_a_gpu()


@instruction("ld.global.u8 $0, [$1];", u32, u64, effect=True)
def load1(address: Any) -> Any:
    """A byte as a word."""
    only_on_a_gpu()


@instruction("st.global.v2.b32 [$0], {$1, $2};", None, u64, u32, u32, effect=True)
def store8(address: Any, a: Any, b: Any) -> Any:
    """Store eight aligned bytes."""
    only_on_a_gpu()


@instruction("red.global.max.u32 [$0], $1;", None, u64, u32, effect=True)
def atomic_max(address: Any, word: Any) -> Any:
    """Replace a word in memory by ``word`` if that is larger, atomically."""
    only_on_a_gpu()


@inlined
def size_of(value: Any) -> Any:
    """The bits of a float without the sign: they are ordered as magnitudes, NaN above all."""
    return uint32(ptx.bits_of(value) & 0x7FFFFFFF)  # narrowed: uint32 & uint32 is uint64 to Numba


@inlined
def four_bytes(q0: Any, q1: Any, q2: Any, q3: Any) -> Any:
    """The low bytes of four integers as a word."""
    return ptx.low_halves(ptx.low_bytes(uint32(q0), uint32(q1)), ptx.low_bytes(uint32(q2), uint32(q3)))


@inlined
def largest_size(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The largest magnitude among four values of each of eight threads; NaN if there is one."""
    size = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
    for step in (4, 2, 1):
        size = max(size, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(size), step)))
    return ptx.float_of(size)
