"""Instructions on pairs of float16 in one register, and on their matrices in shared memory.

assembly.py says how to read a wrapper. They are for GPUs from capability 8.0 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .assembly import f32, instruction, only_on_a_gpu, u32
from .language import types


def pair(value: float) -> int:
    """The bits of a pair with one number in both places, on the host."""
    bits = int(np.float16(value).view(np.uint16))
    return bits << 16 | bits


def _values(bits: Any) -> Any:
    return np.array([bits], np.uint32).view(np.float16).astype(np.float64)


def _bits(values: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16).view(np.uint32)[0]


@instruction("cvt.rn.f16x2.f32 $0, $2, $1;", u32, f32, f32)
def narrowed(low: Any, high: Any) -> Any:
    """Two floats, each rounded to the nearest half, ties to even."""
    return _bits(np.array([low, high], np.float32))


@instruction("sub.rn.f16x2 $0, $1, $2;", u32, u32, u32)
def sub(a: Any, b: Any) -> Any:
    """Differences of two pairs."""
    return _bits(_values(a) - _values(b))


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", u32, u32, u32, u32)
def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both, rounded once."""
    return _bits(_values(a) * _values(b) + _values(c))


PICKED = (
    "{{.reg .b16 bl, bh, cl, ch; .reg .b32 b, c; mov.b32 {{bl, bh}}, $2; mov.b32 {{cl, ch}}, $3; "
    "mov.b32 b, {{{0}, {0}}}; mov.b32 c, {{{1}, {1}}}; fma.rn.f16x2 $0, $1, b, c;}}"
)


@instruction(PICKED.format("bl", "cl"), u32, u32, u32, u32)
def fma_low(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both numbers of a with the low ones of b and c, which the instruction itself picks."""
    return fma(a, twice(b), twice(c))


@instruction(PICKED.format("bh", "ch"), u32, u32, u32, u32)
def fma_high(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both numbers of a with the high ones of b and c."""
    return fma(a, twice(b >> 16), twice(c >> 16))


@instruction("prmt.b32 $0, $1, 0, 0x1010;", u32, u32)
def twice(half: Any) -> Any:
    """A half in both places."""
    return np.uint32(half & 0xFFFF | (half & 0xFFFF) << 16)


# --- shared memory ----------------------------------------------------------------------------


@instruction("{.reg .b16 h; ld.shared.b16 h, [$1]; cvt.u32.u16 $0, h;}", u32, u32, effect=True)
def take2(address: Any) -> Any:
    """Two bytes of shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.u8 $0, [$1];", u32, u32, effect=True)
def take1(address: Any) -> Any:
    """A byte of shared memory."""
    only_on_a_gpu()


@instruction("st.shared.b32 [$0], $1;", None, u32, u32, effect=True)
def put4(address: Any, word: Any) -> Any:
    """Four bytes into shared memory."""
    only_on_a_gpu()


@instruction("st.shared.v2.f32 [$0], {$1, $2};", None, u32, f32, f32, effect=True)
def put_pair(address: Any, a: Any, b: Any) -> Any:
    """Two floats into shared memory."""
    only_on_a_gpu()


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];",
    types.UniTuple(u32, 4), u32, effect=True,
)  # fmt: skip
def load_matrices(address: Any) -> Any:
    """Elements 2 t, 2 t + 1 of row g of four matrices; lane 8 i + r names row r of matrix i."""
    only_on_a_gpu()


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];",
    types.UniTuple(u32, 4), u32, effect=True,
)  # fmt: skip
def load_transposed(address: Any) -> Any:
    """Elements of column g in rows 2 t, 2 t + 1 of four matrices; lane 8 i + r names row r of matrix i."""
    only_on_a_gpu()


@instruction("movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", u32, u32, effect=True)
def transposed(pair: Any) -> Any:
    """Elements of column g in rows 2 t, 2 t + 1 of a matrix of which lanes have 2 t, 2 t + 1 of row g."""
    only_on_a_gpu()
