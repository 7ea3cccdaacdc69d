"""The residual of a product: an array of the result's shape, added to sums of ``wgmma`` or ``mma``.

It is float32, float16 or bfloat16, whatever the result is, [m, n] with even n. A residual of 16 bits is read
in words, of which a thread takes its half. The order of sums is that of epilogue/thread_sums.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..intrinsics import codes, ptx
from ..intrinsics.address import address
from ..intrinsics.assembly import FLOAT, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.atoms import inlined
from ..intrinsics.language import SIMULATED, ir, types, uint32, uint64
from ..intrinsics.wgmma8 import unpacked
from .results import LETTERS, NOTHING

# Sums whose residuals are loaded while as many before them are added; so many as registers are free then.
NARROW, FEW, MANY = 160, 8, 12  # columns of a tile, sums


def residual_of(residual: Any) -> tuple[Any, int]:
    """The residual that a launch is given: an array, or 0 for None, and its kind."""
    return (0, 0) if residual is None else (residual, LETTERS[residual.dtype.char])


@cache
def residual_loader() -> Any:
    """The device function (residual, kind, column, row, n) for a number of a residual; -0.0 without one."""
    load_float, load2, half, float_of = ptx.load_float, codes.load2, ptx.half_value, ptx.float_of

    @inlined
    def load(residual: Any, kind: Any, column: Any, row: Any, n: Any) -> Any:
        value = NOTHING
        if residual != uint64(0):
            if kind == uint32(0):
                value = load_float(address(residual, column, n, row, 4))
            else:
                bits = uint32(load2(address(residual, column, n, row, 2)))
                value = half(bits) if kind == uint32(1) else float_of(bits << uint32(16))
        return value

    return load


@cache
def residual_adder(columns: int, paced: bool) -> Callable[..., Any]:
    """The device function (sums, residual, kind, column, row, m, n, low, high) for sums with their residual.

    A bias, ``low`` of row g and ``high`` of row g + 8, is added first. ``paced``: the assembler may not load
    all at once, for which kernels with many numbers beside the sums have no registers.
    """
    count = columns // 2
    kind, result = types.UniTuple(f32, count), ir.LiteralStructType([FLOAT] * count)
    text = _adding(columns, paced)
    constraints = [*["=f"] * count, *map(str, range(count)), *"lrrrrrff"]

    def add(
        sums: Any, residual: Any, kind: Any, column: Any, row: Any, m: Any, n: Any, low: Any, high: Any
    ) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = [*unpacked(builder, sums, count), *arguments]
        results = emit_assembly(builder, result, text, constraints, values, effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, results, count))

    if SIMULATED:
        return add
    words = (u64, *(u32,) * 5, f32, f32)
    intrinsic: Callable[..., Any] = as_intrinsic(add, kind(kind, *words), emit)
    return intrinsic


def _adding(columns: int, paced: bool) -> str:
    """The assembly of ``add``. Operands: the sums twice, then those of ``add`` in their order.

    ``which`` takes float32 from a word, or bfloat16 as the upper half of one, or float16 as the lower half.
    """
    count, at_once = columns // 2, FEW if columns <= NARROW else MANY

    def word_of(i: int) -> str:
        return f"w{i % (2 * at_once)}"

    residual, kind, column, row, m, n, low, high = (f"${2 * count + i}" for i in range(8))
    lines = ["{.reg .pred wide, half, p, low, high; .reg .b32 c, r, which, size; .reg .b16 h, k;"]
    lines += [f".reg .b32 w<{2 * at_once}>; .reg .f32 v; .reg .b64 at, above, pitch, far;"]
    lines += [f"setp.eq.u32 wide, {kind}, 0; setp.eq.u32 half, {kind}, 1; selp.b32 size, 2, 1, wide;"]
    lines += [f"setp.lt.u32 low, {row}, {n}; add.u32 r, {row}, 8; setp.lt.u32 high, r, {n};"]
    lines += [f"and.b32 r, {row}, 1; selp.b32 which, 0x4410, 0x1044, half; selp.b32 c, 0x22, 0x2200, half;"]
    lines += ["mad.lo.u32 which, c, r, which; selp.b32 which, 0x3210, which, wide;"]
    lines += [f"selp.b32 r, 0, r, wide; sub.u32 r, {row}, r; cvt.u64.u32 far, r;"]
    lines += [f"mul.wide.u32 at, {column}, {n}; add.u64 at, at, far; shl.b64 at, at, size;"]
    lines += [f"add.u64 at, at, {residual}; selp.b32 c, 32, 16, wide; cvt.u64.u32 far, c;"]
    lines += [f"add.u64 above, at, far; shl.b32 c, {n}, size; cvt.u64.u32 pitch, c; mul.wide.u32 far, c, 7;"]
    groups = [range(first, min(first + at_once, count), 4) for first in range(0, count, at_once)]
    for group, after in zip([range(0), *groups], [*groups, range(0)], strict=True):
        lines += ["bar.warp.sync -1;"] if paced and group and after else []  # loads do not pass it
        for i in after:
            for e, step in enumerate(("pitch", "far")):
                word, below = word_of(i + e), word_of(i + e + 2)
                lines += [f"add.u32 c, {column}, {2 * i + e}; setp.lt.and.u32 p, c, {m}, low;"]
                lines += [f"mov.b32 {word}, 0; @p ld.global.b32 {word}, [at];"]
                lines += [f"setp.lt.and.u32 p, c, {m}, high;"]
                lines += [f"mov.b32 {below}, 0; @p ld.global.b32 {below}, [above];"]
                lines += [f"add.u64 at, at, {step}; add.u64 above, above, {step};"]
        for i in group:
            for e, bias in enumerate((low, low, high, high)):
                word = word_of(i + e)
                lines += [f"prmt.b32 {word}, {word}, 0, which; mov.b32 v, {word}; mov.b32 {{h, k}}, {word};"]
                lines += [f"@half cvt.f32.f16 v, h; add.rn.f32 ${i + e}, ${i + e}, {bias};"]
                lines += [f"add.rn.f32 ${i + e}, ${i + e}, v;"]
    return "\n".join([*lines, "}"])
