"""Instructions on pairs of bfloat16 in one register: arithmetic, ``mma``, loads and stores.

assembly.py says how to read a wrapper. They are for GPUs from capability 8.0 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .assembly import f32, instruction, only_on_a_gpu, u32, u64
from .atoms import inlined
from .language import types


def pair(value: float) -> int:
    """The bits of a pair with one number in both places, on the host; a bfloat16 must hold it exactly."""
    bits = int(np.float32(value).view(np.uint32))
    assert not bits & 0xFFFF, f"{value} is no bfloat16"
    return bits >> 16 | bits


ONES = np.uint32(pair(1))


def _values(bits: Any) -> Any:
    """The two floats of a pair, the low one first."""
    return np.array([np.uint32(bits) << np.uint32(16), np.uint32(bits) & 0xFFFF0000], np.uint32).view(
        np.float32
    )


def _nearest(low: Any, high: Any) -> Any:
    bits = np.array([low, high], np.float32).view(np.uint32).astype(np.uint64)
    bits = np.where(np.isnan([low, high]), np.uint64(0x7FFF0000), bits + (0x7FFF + (bits >> 16 & 1)))
    return np.uint32(bits[0] >> 16 | bits[1] & 0xFFFF0000)


def _twice(half: Any) -> Any:
    """A half in both places."""
    return np.uint32(half | half << 16)


@instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", u32, f32, f32)
def narrowed(low: Any, high: Any) -> Any:
    """Two floats, each rounded to the nearest bfloat16, ties to even."""
    return _nearest(low, high)


@instruction("fma.rn.bf16x2 $0, $1, $2, $3;", u32, u32, u32, u32)
def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both, each rounded once (in plain Python twice)."""
    low, high = (_values(a).astype(np.float64) * _values(b) + _values(c)).astype(np.float32)
    return _nearest(low, high)


HALVES = (
    "{{.reg .b16 bl, bh, cl, ch; .reg .b32 b, c; mov.b32 {{bl, bh}}, $2; mov.b32 {{cl, ch}}, $3; "
    "mov.b32 b, {{{0}, {0}}}; mov.b32 c, {{{1}, {1}}}; fma.rn.bf16x2 $0, $1, b, c;}}"
)


@instruction(HALVES.format("bl", "cl"), u32, u32, u32, u32)
def fma_low(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both numbers of a with the low ones of b and c, which the instruction itself picks."""
    return fma(a, _twice(b & 0xFFFF), _twice(c & 0xFFFF))


@instruction(HALVES.format("bh", "ch"), u32, u32, u32, u32)
def fma_high(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of both numbers of a with the high ones of b and c."""
    return fma(a, _twice(b >> 16), _twice(c >> 16))


@instruction("max.s16x2 $0, $1, $2;", u32, u32, u32)
def largest(a: Any, b: Any) -> Any:
    """The larger of a and b in each half, compared as integers with a sign; from capability 9.0 on."""
    return np.maximum(*np.array([[a], [b]], np.uint32).view(np.int16)).view(np.uint32)[0]


@instruction("prmt.b32 $0, $1, $2, $3;", u32, u32, u32, u32)
def permute(a: Any, b: Any, picks: Any) -> Any:
    """Four bytes out of eight: nibble i of ``picks``, below 8, says which becomes byte i."""
    eight = int(a) | int(b) << 32
    return np.uint32(sum((eight >> 8 * (int(picks) >> 4 * i & 7) & 255) << 8 * i for i in range(4)))


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
    types.UniTuple(f32, 4), u32, u32, u32, u32, u32, u32, f32, f32, f32, f32,
)  # fmt: skip
def mma(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
) -> Any:  # fmt: skip
    """[16, 16] times [16, 8] numbers, added to c; lane = 4 g + t.

    a0, a2: row g; a1, a3: row g + 8; b0, b1: column g. a0, a1 meet b0, the others b1. Results are
    those of row g, columns 2 t and 2 t + 1, and of row g + 8.
    """
    only_on_a_gpu()


@inlined
def mma_into(d: Any, j: Any, a: Any, o: Any, b: Any, i: Any) -> None:
    """Add the product of a[o] … and b[i] … to the four sums from d[j] on."""
    v = mma(a[o], a[o + 1], a[o + 2], a[o + 3], b[i], b[i + 1], d[j], d[j + 1], d[j + 2], d[j + 3])
    d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]


@inlined
def sums_into(d: Any, j: Any, times: Any, b: Any, i: Any) -> None:
    """Add the sums of the columns b[i] …, times a pair of equal numbers, to the four from d[j] on."""
    v = mma(times, times, times, times, b[i], b[i + 1], d[j], d[j + 1], d[j + 2], d[j + 3])
    d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]


@instruction("ld.global.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u64, effect=True)
def load8(address: Any) -> Any:
    """Eight aligned bytes of memory as two words: four bfloat16."""
    only_on_a_gpu()


@instruction("ld.shared.v2.b32 {$0, $1}, [$2];", types.UniTuple(u32, 2), u32, effect=True)
def take8(address: Any) -> Any:
    """Load two words from shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.b32 $0, [$1];", u32, u32, effect=True)
def take4(address: Any) -> Any:
    """Load a word from shared memory."""
    only_on_a_gpu()


@instruction("st.shared.f32 [$0], $1;", None, u32, f32, effect=True)
def put_float(address: Any, value: Any) -> Any:
    """Store one float in shared memory."""
    only_on_a_gpu()


@instruction("ld.shared.f32 $0, [$1];", f32, u32, effect=True)
def take_float(address: Any) -> Any:
    """Load one float from shared memory."""
    only_on_a_gpu()


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", None, u32, u64, u32, effect=True)
def copy16_or_zeros(shared: Any, address: Any, size: Any) -> Any:
    """Start to copy ``size`` bytes, 0 or 16, into 16 bytes of shared memory; the rest becomes zeros."""
    only_on_a_gpu()


@instruction("prefetch.global.L2 [$0];", None, u64, effect=True)
def prefetch(address: Any) -> Any:
    """Start to read the line of 128 bytes at an address into the second cache, which is never stale."""
    only_on_a_gpu()
