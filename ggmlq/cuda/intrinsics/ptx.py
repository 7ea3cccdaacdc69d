"""Instructions that Numba has no name for: floats, bits, loads, stores, copies, ldmatrix; see assembly.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .assembly import WORD, as_intrinsic, f32, i32, instruction, only_on_a_gpu, u32, u64
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


@instruction("dp4a.s32.s32 $0, $1, $2, $3;", i32, i32, i32, i32)
def dp4a(a: Any, b: Any, c: Any) -> Any:
    """Four products of signed bytes, added to c."""
    x, y = (np.array([v], np.int32).view(np.int8).astype(np.int32) for v in (a, b))
    return np.int32(c + (x * y).sum())


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


@instruction("lop3.b32 $0, $1, $2, $3, 0xEA;", u32, u32, u32, u32)
def masked_or(a: Any, mask: Any, others: Any) -> Any:
    """``a & mask | others`` in one instruction: left to itself LLVM makes two of some."""
    return np.uint32(a & mask | others)


@instruction("lop3.b32 $0, $1, $2, $3, 0x6A;", u32, u32, u32, u32)
def masked_xor(a: Any, mask: Any, others: Any) -> Any:
    """``a & mask ^ others`` in one instruction."""
    return np.uint32(a & mask ^ others)


# --- device memory ----------------------------------------------------------------------------


@instruction("ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u64, effect=True)
def load16(address: Any) -> Any:
    """Load 16 bytes that nothing writes while the kernel runs."""
    only_on_a_gpu()


@instruction("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", types.UniTuple(f32, 4), u64, effect=True)
def load_floats(address: Any) -> Any:
    """Four floats of memory."""
    only_on_a_gpu()


@instruction("st.global.v4.b32 [$0], {$1, $2, $3, $4};", None, u64, u32, u32, u32, u32, effect=True)
def store16(address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Store 16 aligned bytes."""
    only_on_a_gpu()


@instruction("st.global.b32 [$0], $1;", None, u64, u32, effect=True)
def store4(address: Any, word: Any) -> Any:
    """Store four bytes to memory."""
    only_on_a_gpu()


@instruction("{.reg .b16 h; cvt.u16.u32 h, $1; st.global.b16 [$0], h;}", None, u64, u32, effect=True)
def store2(address: Any, word: Any) -> Any:
    """Store two bytes: the low half of a word."""
    only_on_a_gpu()


@instruction("st.global.b8 [$0], $1;", None, u64, u32, effect=True)
def store1(address: Any, word: Any) -> Any:
    """Store one byte: the lowest of a word."""
    only_on_a_gpu()


@instruction("st.global.f32 [$0], $1;", None, u64, f32, effect=True)
def store_float(address: Any, value: Any) -> Any:
    """Store one float to memory."""
    only_on_a_gpu()


@instruction("st.global.v2.f32 [$0], {$1, $2};", None, u64, f32, f32, effect=True)
def store_pair(address: Any, a: Any, b: Any) -> Any:
    """Store two floats at an address that is a multiple of eight."""
    only_on_a_gpu()


@instruction("ld.global.f32 $0, [$1];", f32, u64, effect=True)
def load_float(address: Any) -> Any:
    """One float of memory."""
    only_on_a_gpu()


@instruction("red.global.or.b32 [$0], $1;", None, u64, u32, effect=True)
def set_bits(address: Any, bits: Any) -> Any:
    """Set bits of a word in memory, atomically."""
    only_on_a_gpu()


# --- shared memory: 32-bit addresses ----------------------------------------------------------


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


@instruction("st.shared.b32 [$0], $1;", None, u32, i32, effect=True)
def put(address: Any, word: Any) -> Any:
    """One word into shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", types.UniTuple(i32, 4), u32, effect=True)
def take16(address: Any) -> Any:
    """Four words of shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", types.UniTuple(f32, 4), u32, effect=True)
def take_floats(address: Any) -> Any:
    """Four floats of shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.v2.f32 {$0, $1}, [$2];", types.UniTuple(f32, 2), u32, effect=True)
def take_pair(address: Any) -> Any:
    """Two floats of shared memory."""
    only_on_a_gpu()


@instruction("cp.async.cg.shared.global [$0], [$1], 16;", None, u32, u64, effect=True)
def copy16(shared: Any, address: Any) -> Any:
    """Start to copy 16 bytes into shared memory past the registers; from capability 8.0."""
    only_on_a_gpu()


@instruction("cp.async.commit_group;", None, effect=True)
def commit() -> Any:
    """Close a group of copies."""
    only_on_a_gpu()


def wait_for_all_but(groups: int) -> Any:
    """The instruction that waits until at most ``groups`` groups of copies are in flight."""

    @instruction(f"cp.async.wait_group {groups};", None, effect=True)
    def wait() -> Any:
        only_on_a_gpu()

    return wait


# --- matrices for tensor cores: lane = 4 g + t ------------------------------------------------


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];",
    types.UniTuple(i32, 4), u32, effect=True,
)  # fmt: skip
def load_matrices(address: Any) -> Any:
    """Bytes 4 t … 4 t + 3 of row g of four matrices; lane 8 i + r passes the address of row r of matrix i."""
    only_on_a_gpu()
