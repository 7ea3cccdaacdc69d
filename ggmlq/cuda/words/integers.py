"""Integers of 32 bits that stay so: Numba makes 64 bits of what it adds, multiplies and shifts."""

from __future__ import annotations

from typing import Any

import numpy as np

from .assembly import i32, instruction, only_on_a_gpu, u32, u64
from .atoms import inlined
from .language import int32, types


@instruction("shl.b32 $0, $1, $2;", i32, i32, i32)
def up(v: Any, by: Any) -> Any:
    """A shift to the left."""
    return np.int32(v) << np.int32(by)


@instruction("shr.s32 $0, $1, $2;", i32, i32, i32)
def down(v: Any, by: Any) -> Any:
    """A shift to the right that keeps the sign."""
    return np.int32(v) >> np.int32(by)


@instruction("max.s32 $0, $1, $2;", i32, i32, i32)
def larger(a: Any, b: Any) -> Any:
    """The larger one."""
    return np.int32(max(a, b))


@instruction("min.s32 $0, $1, $2;", i32, i32, i32)
def smaller(a: Any, b: Any) -> Any:
    """The smaller one."""
    return np.int32(min(a, b))


@inlined
def plus(a: Any, b: Any) -> Any:
    return int32(a + b)


@inlined
def minus(a: Any, b: Any) -> Any:
    return int32(a - b)


@inlined
def times(a: Any, b: Any) -> Any:
    return int32(a * b)


@inlined
def shifted(v: Any, left: Any, half: Any, negative: Any, right: Any) -> Any:
    """``fixed/shift.py``'s."""
    return down(int32(int32(up(v, left) + half) + int32(down(v, int32(31)) & negative)), right)


@inlined
def clamped(v: Any, low: Any, high: Any) -> Any:
    return smaller(larger(v, low), high)


# --- memory -------------------------------------------------------------------------------------


@instruction("st.shared.b8 [$0], $1;", None, u32, i32, effect=True)
def put1(address: Any, byte: Any) -> Any:
    """The lowest byte of a word into shared memory."""
    only_on_a_gpu()


@instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", None, u32, i32, i32, i32, i32, effect=True)
def put16(address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four words into shared memory."""
    only_on_a_gpu()


@instruction("ld.global.cg.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u64, effect=True)
def load16_of_others(address: Any) -> Any:
    """16 bytes that other blocks may have written before this one met them: past the first cache."""
    only_on_a_gpu()


@instruction("ld.global.s8 $0, [$1];", i32, u64, effect=True)
def load1(address: Any) -> Any:
    """A signed byte."""
    only_on_a_gpu()
