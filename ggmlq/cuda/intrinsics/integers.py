"""Integer arithmetic in 32 bits for kernels, where Numba itself computes in 64; loads and stores of words.

Each function is one instruction or a few, which Numba need not inline anew at each use: that compiles faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...fixed.shift import shifted as meaning_of_shifted
from .assembly import f32, i32, instruction, only_on_a_gpu, u32, u64
from .language import types


@instruction("add.s32 $0, $1, $2;", i32, i32, i32)
def plus(a: Any, b: Any) -> Any:
    return a + b


@instruction("sub.s32 $0, $1, $2;", i32, i32, i32)
def minus(a: Any, b: Any) -> Any:
    return a - b


@instruction("mul.lo.s32 $0, $1, $2;", i32, i32, i32)
def times(a: Any, b: Any) -> Any:
    return a * b


@instruction(
    "{.reg .b32 up, down; shl.b32 up, $1, $2; shr.s32 down, $1, 31; and.b32 down, down, $4; "
    "add.s32 up, up, $3; add.s32 up, up, down; shr.s32 $0, up, $5;}",
    i32, i32, i32, i32, i32, i32,
)  # fmt: skip
def shifted(v: Any, left: Any, half: Any, negative: Any, right: Any) -> Any:
    """The rounding shift of ``fixed/shift.py``."""
    return meaning_of_shifted(v, left, half, negative, right)


@instruction("{.reg .b32 above; max.s32 above, $1, $2; min.s32 $0, above, $3;}", i32, i32, i32, i32)
def clamped(v: Any, low: Any, high: Any) -> Any:
    """A value, raised to ``low`` or lowered to ``high`` if it lies beyond."""
    return min(max(v, low), high)


# --- memory -------------------------------------------------------------------------------------


@instruction("st.shared.b8 [$0], $1;", None, u32, i32, effect=True)
def put1(address: Any, byte: Any) -> Any:
    """Store the lowest byte of a word in shared memory."""
    only_on_a_gpu()


@instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", None, u32, i32, i32, i32, i32, effect=True)
def put16(address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Store four words in shared memory."""
    only_on_a_gpu()


@instruction("ld.global.cg.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u64, effect=True)
def load8_l2(address: Any) -> Any:
    """Load two words past the first cache, as they are in memory."""
    only_on_a_gpu()


@instruction("ld.global.cg.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u64, effect=True)
def load16_l2(address: Any) -> Any:
    """Load 16 bytes past the first cache: other blocks may have written them while this one ran."""
    only_on_a_gpu()


@instruction(
    "{.reg .pred there; setp.ne.u32 there, $5, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
    "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; @there ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];}",
    types.UniTuple(f32, 4), u64, u32, effect=True,
)  # fmt: skip
def load_floats_l2_if(address: Any, condition: Any) -> Any:
    """Load four floats past the first cache; zeros, and no access, if ``condition`` is 0."""
    only_on_a_gpu()


@instruction("ld.global.s8 $0, [$1];", i32, u64, effect=True)
def load1(address: Any) -> Any:
    """A signed byte of memory."""
    only_on_a_gpu()


# Addresses of what a thread fetches step by step: one multiply-add, and numbers that stay in a register.
#
# Left to themselves LLVM takes four instructions for such an address, and the assembler computes anew in each
# round of a loop what follows from a thread's number.


@instruction("mad.wide.u32 $0, $1, $2, $3;", u64, u32, u32, u64)
def wide_place(count: Any, size: Any, base: Any) -> Any:
    """``base + count * size`` in 64 bits."""
    return np.uint64(int(base) + int(count) * int(size))


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", u32, u32, u32, effect=True)
def held(value: Any, lane: Any) -> Any:
    """A lane's own number, kept in a register."""
    only_on_a_gpu()
