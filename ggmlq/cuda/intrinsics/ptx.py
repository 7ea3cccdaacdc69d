"""Instructions that Numba has no name for: floats, bits, loads, stores, copies; see assembly.py.

Names of loads and stores say which memory and how many bytes:

    load, store       device memory, at an address of 64 bits
    take, put         shared memory, at an address of 32 bits
    copy              from device memory into shared memory, past the registers
    1, 2, 4, 8, 16    bytes, in words of 32 bits; one or two are the low end of a word
    float, pair, floats    one, two or four float32
    _nc               of memory that nothing writes while the kernel runs: from any cache
    _l2               past the first cache, which may hold what memory held before
    _if               where a condition is not 0, without a branch

Addresses are multiples of the size. Arithmetic of integers here is 32 bits wide, where Numba computes in 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...fixed.shift import shifted as meaning_of_shifted
from .assembly import WORD, as_intrinsic, f32, gpu_only, i32, instruction, only_on_a_gpu, u32, u64
from .language import SIMULATED, ir, types

# --- float32, rounded once: never fused with what comes before or after -----------------------


@instruction("mul.rn.f32 $0, $1, $2;", f32, f32, f32)
def mul(a: Any, b: Any) -> Any:
    """A product, rounded once."""
    return np.float32(a) * np.float32(b)


@instruction("add.rn.f32 $0, $1, $2;", f32, f32, f32)
def add(a: Any, b: Any) -> Any:
    """A sum, rounded once."""
    return np.float32(a) + np.float32(b)


@instruction("sub.rn.f32 $0, $1, $2;", f32, f32, f32)
def sub(a: Any, b: Any) -> Any:
    """A difference, rounded once."""
    return np.float32(a) - np.float32(b)


@instruction("div.rn.f32 $0, $1, $2;", f32, f32, f32)
def div(a: Any, b: Any) -> Any:
    """A quotient; by zero it is infinite or NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(a) / np.float32(b)


@instruction("rcp.rn.f32 $0, $1;", f32, f32)
def reciprocal(a: Any) -> Any:
    """1 / a, rounded once; infinite where a is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.float32(1) / np.float32(a)


@instruction("max.f32 $0, $1, $2;", f32, f32, f32)
def larger(a: Any, b: Any) -> Any:
    """The larger of a and b; if one is NaN, the other."""
    return np.float32(b if np.isnan(a) or b > a else a)


@instruction("min.f32 $0, $1, $2;", f32, f32, f32)
def smaller(a: Any, b: Any) -> Any:
    """The smaller of a and b; if one is NaN, the other."""
    return np.float32(b if np.isnan(a) or b < a else a)


@instruction("fma.rn.f32 $0, $1, $2, $3;", f32, f32, f32, f32)
def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding (in plain Python two, the first to float64)."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@instruction("fma.rp.f32 $0, $1, $2, $3;", f32, f32, f32, f32)
def fma_up(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded up (in plain Python after a rounding to float64)."""
    exact = np.float64(a) * np.float64(b) + np.float64(c)
    rounded = np.float32(exact)
    return np.nextafter(rounded, np.float32(np.inf)) if rounded < exact else rounded


# --- conversions ------------------------------------------------------------------------------


@instruction("mov.b32 $0, $1;", u32, f32)
def bits_of(value: Any) -> Any:
    """The 32 bits of a float."""
    return np.float32(value).view(np.uint32)


@instruction("mov.b32 $0, $1;", f32, u32)
def float_of(bits: Any) -> Any:
    """The float of 32 bits."""
    return np.uint32(bits).view(np.float32)


@instruction("mov.b32 $0, $1;", f32, i32)
def float_of_int_bits(bits: Any) -> Any:
    """The float with the bits of an integer."""
    return np.int32(bits).view(np.float32)


@instruction("{.reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h;}", f32, u32)
def half_value(bits: Any) -> Any:
    """The float32 of a half's 16 bits."""
    return np.float32(np.uint16(bits).view(np.float16))


@instruction("{.reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h;}", u32, f32)
def half_bits(value: Any) -> Any:
    """The 16 bits of the nearest half."""
    with np.errstate(over="ignore"):
        return np.uint32(np.float32(value).astype(np.float16).view(np.uint16))


@instruction("{.reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.u32.u16 $0, h;}", u32, f32)
def bfloat_bits(value: Any) -> Any:
    """The 16 bits of the nearest bfloat16; from capability 8.0."""
    bits = np.float32(value).view(np.uint32)
    return np.uint32(0x7FFF) if np.isnan(value) else (bits + np.uint32(0x7FFF + (bits >> 16 & 1))) >> 16


@instruction("cvt.rni.s32.f32 $0, $1;", i32, f32)
def nearest_even(value: Any) -> Any:
    """The nearest integer, ties to even; saturates, NaN is 0."""
    return _saturated(np.rint(value))


@instruction("cvt.rzi.s32.f32 $0, $1;", i32, f32)
def truncated(value: Any) -> Any:
    """A float without its fraction, as an integer; saturates, NaN is 0."""
    return _saturated(np.trunc(value))


def _saturated(whole: Any) -> Any:
    return np.int32(0) if np.isnan(whole) else np.int32(min(max(float(whole), -(2.0**31)), 2.0**31 - 1))


# --- integers ---------------------------------------------------------------------------------


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


@instruction("mad.wide.u32 $0, $1, $2, $3;", u64, u32, u32, u64)
def wide_place(count: Any, size: Any, base: Any) -> Any:
    """``base + count * size`` in 64 bits."""
    return np.uint64(int(base) + int(count) * int(size))


@instruction("dp4a.s32.s32 $0, $1, $2, $3;", i32, i32, i32, i32)
def dp4a(a: Any, b: Any, c: Any) -> Any:
    """Four products of signed bytes, added to c."""
    x, y = (np.array([v], np.int32).view(np.int8).astype(np.int32) for v in (a, b))
    return np.int32(c + (x * y).sum())


# --- bytes and bits of words ------------------------------------------------------------------


@instruction("prmt.b32 $0, $1, $2, $3;", u32, u32, u32, u32)
def permute(a: Any, b: Any, picks: Any) -> Any:
    """Four bytes out of eight: nibble i of ``picks`` says which becomes byte i; 8 more, and it is 255 or 0,
    by its sign.
    """
    eight, word = int(a) | int(b) << 32, 0
    for i in range(4):
        pick = int(picks) >> 4 * i & 15
        byte = eight >> 8 * (pick & 7) & 255
        word |= (byte >> 7) * 255 << 8 * i if pick & 8 else byte << 8 * i
    return np.uint32(word)


@instruction("prmt.b32 $0, $1, $2, 0x0040;", u32, u32, u32)
def low_bytes(a: Any, b: Any) -> Any:
    """The lowest byte of a, then that of b; the high half is of no use."""
    return np.uint32(a & 255 | (b & 255) << 8)


@instruction("prmt.b32 $0, $1, $2, 0x0073;", u32, u32, u32)
def high_bytes(a: Any, b: Any) -> Any:
    """The highest byte of a, then that of b; the high half is of no use."""
    return np.uint32(a >> 24 | b >> 24 << 8)


@instruction("prmt.b32 $0, $1, $2, 0x5410;", u32, u32, u32)
def low_halves(a: Any, b: Any) -> Any:
    """The low half of a, then that of b."""
    return np.uint32(a & 0xFFFF | (b & 0xFFFF) << 16)


@instruction("prmt.b32 $0, $1, 0, 0x1010;", u32, u32)
def twice(half: Any) -> Any:
    """A half in both places."""
    return np.uint32(half & 0xFFFF | (half & 0xFFFF) << 16)


@instruction("max.s16x2 $0, $1, $2;", u32, u32, u32)
def largest(a: Any, b: Any) -> Any:
    """The larger of a and b in each half, compared as integers with a sign; from capability 9.0 on."""
    return np.maximum(*np.array([[a], [b]], np.uint32).view(np.int16)).view(np.uint32)[0]


@instruction("lop3.b32 $0, $1, $2, $3, 0xEA;", u32, u32, u32, u32)
def masked_or(a: Any, mask: Any, others: Any) -> Any:
    """``a & mask | others`` in one instruction: left to itself LLVM makes two of some."""
    return np.uint32(a & mask | others)


@instruction("lop3.b32 $0, $1, $2, $3, 0x6A;", u32, u32, u32, u32)
def masked_xor(a: Any, mask: Any, others: Any) -> Any:
    """``a & mask ^ others`` in one instruction."""
    return np.uint32(a & mask ^ others)


# --- device memory ----------------------------------------------------------------------------


load1 = gpu_only("load1", "ld.global.u8 $0, [$1];", u32, u64)  # a byte as a word
load_int8 = gpu_only("load_int8", "ld.global.s8 $0, [$1];", i32, u64)  # a signed byte of memory
# Two bytes as the low half of a word, the other is 0.
load2 = gpu_only("load2", "ld.global.u16 $0, [$1];", u32, u64)
load4 = gpu_only("load4", "ld.global.b32 $0, [$1];", u32, u64)  # load a word from memory
# Four bytes that nothing writes meanwhile.
load4_nc = gpu_only("load4_nc", "ld.global.nc.b32 $0, [$1];", i32, u64)
# Eight aligned bytes of memory as two words: four bfloat16.
load8 = gpu_only("load8", "ld.global.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u64)
# Load two words past the first cache, as they are in memory.
load8_l2 = gpu_only("load8_l2", "ld.global.cg.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u64)
# 16 aligned bytes as four words.
load_words = gpu_only("load_words", "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(u32, 4), u64)
# Load 16 bytes that nothing writes while the kernel runs.
load16 = gpu_only("load16", "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u64)
# Load 16 bytes past the first cache: other blocks may have written them while this one ran.
load16_l2 = gpu_only("load16_l2", "ld.global.cg.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u64)
load_float = gpu_only("load_float", "ld.global.f32 $0, [$1];", f32, u64)  # one float of memory
# Four floats of memory.
load_floats = gpu_only("load_floats", "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", types.UniTuple(f32, 4), u64)
# Load four floats past the first cache; zeros, and no access, if ``condition`` is 0.
load_floats_l2_if = gpu_only("load_floats_l2_if",
    "{.reg .pred there; setp.ne.u32 there, $5, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
    "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; @there ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];}",
    types.UniTuple(f32, 4), u64, u32,
)  # fmt: skip
store1 = gpu_only("store1", "st.global.b8 [$0], $1;", None, u64, u32)  # store one byte: the lowest of a word
# Store two bytes: the low half of a word.
store2 = gpu_only("store2", "{.reg .b16 h; cvt.u16.u32 h, $1; st.global.b16 [$0], h;}", None, u64, u32)
store4 = gpu_only("store4", "st.global.b32 [$0], $1;", None, u64, u32)  # store four bytes to memory
# Store eight aligned bytes.
store8 = gpu_only("store8", "st.global.v2.b32 [$0], {$1, $2};", None, u64, u32, u32)
# Store 16 aligned bytes.
store16 = gpu_only("store16", "st.global.v4.b32 [$0], {$1, $2, $3, $4};", None, u64, u32, u32, u32, u32)
store_float = gpu_only("store_float", "st.global.f32 [$0], $1;", None, u64, f32)  # store one float to memory
# Store two floats at an address that is a multiple of eight.
store_pair = gpu_only("store_pair", "st.global.v2.f32 [$0], {$1, $2};", None, u64, f32, f32)
# Store one float, if ``inside`` is not 0.
store_if = gpu_only(
    "store_if", "{.reg .pred p; setp.ne.u32 p, $2, 0; @p st.global.f32 [$0], $1;}", None, u64, f32, u32
)
# Store two floats at an address that is a multiple of eight, if ``inside`` is not 0.
store_pair_if = gpu_only("store_pair_if",
    "{.reg .pred p; setp.ne.u32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}",
    None, u64, f32, f32, u32,
)  # fmt: skip
# Set bits of a word in memory, atomically.
set_bits = gpu_only("set_bits", "red.global.or.b32 [$0], $1;", None, u64, u32)
# Replace a word in memory by ``word`` if that is larger, atomically.
atomic_max = gpu_only("atomic_max", "red.global.max.u32 [$0], $1;", None, u64, u32)
# Start to read the line of 128 bytes at an address into the second cache, which is never stale.
prefetch = gpu_only("prefetch", "prefetch.global.L2 [$0];", None, u64)

# --- shared memory ----------------------------------------------------------------------------


def _shared_base(meaning: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        module = builder.module
        try:
            memory = module.get_global("dynamic_shared")
        except KeyError:
            memory = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), 0), "dynamic_shared", addrspace=3)
            memory.linkage, memory.align = "external", 128
        return builder.ptrtoint(memory, WORD)

    return meaning if SIMULATED else as_intrinsic(meaning, u32(), emit)


@_shared_base
def shared_base() -> Any:
    """The start of a block's dynamic shared memory; a multiple of 128."""
    only_on_a_gpu()


take1 = gpu_only("take1", "ld.shared.u8 $0, [$1];", u32, u32)  # a byte of shared memory
# Two bytes of shared memory.
take2 = gpu_only("take2", "{.reg .b16 h; ld.shared.b16 h, [$1]; cvt.u32.u16 $0, h;}", u32, u32)
take4 = gpu_only("take4", "ld.shared.b32 $0, [$1];", u32, u32)  # load a word from shared memory
# Load two words from shared memory.
take8 = gpu_only("take8", "ld.shared.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u32)
# Four words of shared memory.
take16 = gpu_only("take16", "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u32)
take_float = gpu_only("take_float", "ld.shared.f32 $0, [$1];", f32, u32)  # load one float from shared memory
# Two floats of shared memory.
take_pair = gpu_only("take_pair", "ld.shared.v2.f32 {$0, $1}, [$2];", types.UniTuple(f32, 2), u32)
# Four floats of shared memory.
take_floats = gpu_only("take_floats", "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", types.UniTuple(f32, 4), u32)
# Store the lowest byte of a word in shared memory.
put1 = gpu_only("put1", "st.shared.b8 [$0], $1;", None, u32, i32)
put4 = gpu_only("put4", "st.shared.b32 [$0], $1;", None, u32, u32)  # four bytes into shared memory
# Store four words in shared memory.
put16 = gpu_only("put16", "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", None, u32, i32, i32, i32, i32)
# Store one float in shared memory.
put_float = gpu_only("put_float", "st.shared.f32 [$0], $1;", None, u32, f32)
# Two floats into shared memory.
put_pair = gpu_only("put_pair", "st.shared.v2.f32 [$0], {$1, $2};", None, u32, f32, f32)

# --- copies into shared memory ----------------------------------------------------------------


# Start to copy four bytes into shared memory; from capability 8.0.
copy4 = gpu_only("copy4", "cp.async.ca.shared.global [$0], [$1], 4;", None, u32, u64)
# Start to copy 16 bytes into shared memory past the registers; from capability 8.0.
copy16 = gpu_only("copy16", "cp.async.cg.shared.global [$0], [$1], 16;", None, u32, u64)
# Start to copy ``size`` bytes, 0 or 16, into 16 bytes of shared memory; the rest becomes zeros.
copy16_or_zeros = gpu_only(
    "copy16_or_zeros", "cp.async.cg.shared.global [$0], [$1], 16, $2;", None, u32, u64, u32
)
commit = gpu_only("commit", "cp.async.commit_group;", None)  # close a group of copies


def wait_for_all_but(groups: int) -> Any:
    """The instruction that waits until at most ``groups`` groups of copies are in flight."""

    @instruction(f"cp.async.wait_group {groups};", None, effect=True)
    def wait() -> Any:
        only_on_a_gpu()

    return wait
