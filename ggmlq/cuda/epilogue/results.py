"""Results of products with packed weights: a bias is added to a sum, then it is rounded once and stored.

A kernel takes ``result``, a tuple of four: the address of y [m, n], the kind of its floats, the address of a
bias [n] or 0, the kind of its floats. Kinds are places in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...base.slots import Slot, following
from ..activations.floats import NAMES
from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.assembly import (
    FLOAT,
    as_intrinsic,
    emit_assembly,
    f32,
    instruction,
    only_on_a_gpu,
    u32,
    u64,
)
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import address, four_into
from ..intrinsics.language import SIMULATED, cuda, float32, ir, types, uint32, uint64
from ..intrinsics.wgmma import unpacked
from ..machine.launch import Kernel, family
from ..machine.recorded import RecordedLaunches, X, Y

KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
LETTERS = {"f": 0, "e": 1, "H": 2}  # the same, by NumPy's letters
NOTHING = np.float32(-0.0)  # it changes no sum, not even one of -0


def result_of(y: Any, bias: Any) -> tuple[Any, int, Any, int]:
    """The result that a launch is given; ``bias``: an array, or None."""
    about = (0, 0) if bias is None else (bias, LETTERS[bias.dtype.char])
    return y, LETTERS[y.dtype.char], *about


@cache
def bias_loader() -> Any:
    """The device function for the bias of a row of weights."""
    load_float, load2, half, float_of = ptx.load_float, codes.load2, ptx.half_value, ptx.float_of

    @inlined
    def load_bias(result: Any, row: Any, n: Any) -> Any:
        _, _, bias, kind = result
        value = NOTHING
        if bias != uint64(0) and row < n:
            if kind == uint32(0):
                value = load_float(bias + uint64(row) * uint64(4))
            else:
                bits = uint32(load2(bias + uint64(row) * uint64(2)))
                value = half(bits) if kind == uint32(1) else float_of(bits << uint32(16))
        return value

    return load_bias


@instruction(
    "{.reg .pred wide, half; .reg .b16 h; setp.eq.u32 wide, $2, 0; setp.eq.u32 half, $2, 1; "
    "@wide st.global.f32 [$0], $1; @half cvt.rn.f16.f32 h, $1; @!half cvt.rn.bf16.f32 h, $1; "
    "@!wide st.global.b16 [$0], h;}",
    None, u64, f32, u32, effect=True,
)  # fmt: skip
def store_as(at: Any, value: Any, kind: Any) -> Any:
    """Store a value as a kind of floats."""
    only_on_a_gpu()


@inlined
def store_result(result: Any, column: Any, row: Any, n: Any, value: Any) -> None:
    """Store a result, y[column, row]; ``value`` has its bias."""
    y, kind, _, _ = result
    size = uint32(4) if kind == uint32(0) else uint32(2)
    store_as(address(y, column, n, row, size), value, kind)


# The residual of a product: an array of the result's shape, added to sums of ``wgmma`` or ``mma``.
#
# It is float32, float16 or bfloat16, whatever the result is, [m, n] with even n. A residual of 16 bits is
# read in words, of which a thread takes its half. The order of sums is that of epilogue/thread_sums.py.

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


# The kernel that adds the partial sums of columns that were split among blocks, and writes results.

ADDERS, FOUR = 256, 4  # threads of a block; results of a thread


@family()
def split_adder() -> Kernel:
    """The kernel that adds the partial sums of each result, the first part first, then bias and residual."""
    load_floats, take_turn = ptx.load_floats, dependent_launch.take_turn
    load_bias, load_residual, store = bias_loader(), residual_loader(), store_result

    def add(
        partials: Any,  # float32 [count, m, fours, 4]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: epilogue/results.py
        count: Any, m: Any, n: Any, fours: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: epilogue/results.py
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * uint64(ADDERS) + uint64(cuda.threadIdx.x)
        length = uint64(m) * uint64(fours)
        if i < length:
            total = cuda.local.array(FOUR, float32)
            four_into(total, 0, load_floats(partials + i * uint64(4 * FOUR)))
            for part in range(1, count):
                v = load_floats(address(partials, part, length, i, 4 * FOUR))
                for j in range(FOUR):
                    total[j] += v[j]
            column, first = uint32(i // uint64(fours)), uint32(i % uint64(fours)) * uint32(FOUR)
            result = y, y_kind, bias, bias_kind
            for j in range(FOUR):
                row = first + uint32(j)
                if row < n:
                    value = total[j] + load_bias(result, row, n)
                    more = load_residual(residual, residual_kind, column, row, n)
                    store(result, column, row, n, value + more)

    parameters = (uint64, uint64, uint32, uint64, *(uint32,) * 5, uint64, uint32)
    return Kernel("add partial sums to results", add, *parameters, threads=ADDERS, early=True)


def add_partials(
    partials: Any, result: tuple[Any, ...], m: int, n: int, residual: tuple[Any, int] = (0, 0)
) -> None:  # fmt: skip
    """Launch it for partial sums [splits, m, n], n rounded up to a multiple of four; ``residual``: as of
    ``residual_of``.
    """
    count, _, wide = partials.shape
    fours = wide // FOUR
    blocks = following(m, lambda m: -(-m * fours // ADDERS))
    split_adder()((blocks,), (ADDERS,), partials, *result, count, m, n, fours, *residual)


# The kernel that adds a bias to rows of results by one prepared launch, with the bits of CuPy's kernels.

THREADS, MOST = 256, 65535  # of a block; rows of blocks in a grid


@instruction("add.rn.ftz.f32 $0, $1, $2;", f32, f32, f32)
def add_flushed(a: Any, b: Any) -> Any:
    """A sum as CuPy's kernels give it: subnormal numbers, before and after, are zeros of their sign."""
    least = np.float32(2.0**-126)
    a, b = (np.copysign(np.float32(0), v) if abs(v) < least else np.float32(v) for v in (a, b))
    return np.copysign(np.float32(0), a + b) if abs(a + b) < least else a + b


def loader(kind: str) -> Any:
    """The device function that loads one value of a kind as float32."""
    load2, load_float, float_of, half = codes.load2, ptx.load_float, ptx.float_of, ptx.half_value

    @inlined
    def load_half(at: Any) -> Any:
        return half(load2(at))

    @inlined
    def load_bfloat(at: Any) -> Any:
        return float_of(load2(at) << uint32(16))

    return {"float32": load_float, "float16": load_half, "bfloat16": load_bfloat}[kind]


@family((kind,) for kind in KINDS)
def bias_adder(kind: str) -> Kernel:
    """The kernel that adds a bias: a column a thread, and some of its rows."""
    load, size, load_float, store_float = loader(kind), KINDS[kind], ptx.load_float, ptx.store_float
    take_turn = dependent_launch.take_turn

    def add(
        bias: Any,  # of the kind [n]
        y: Any,  # float32 [m, n]
        m: Any, n: Any,
    ) -> None:  # fmt: skip
        take_turn()
        column = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if column < n:
            b, row = load(bias + uint64(column) * uint64(size)), uint32(cuda.blockIdx.y)
            while row < m:
                at = address(y, row, n, column, 4)
                store_float(at, add_flushed(load_float(at), b))
                row = uint32(row + uint32(cuda.gridDim.y))

    return Kernel(
        f"add a bias of {kind}", add, uint64, uint64, uint32, uint32, threads=THREADS, early=True
    )  # fmt: skip


def plan(m: int, n: int, letter: str) -> RecordedLaunches:
    """The prepared launch that adds a bias to m rows of n results; ``letter``: NumPy's for the bias's kind.

    A call fills in the addresses of the bias and of the results, and the stream.
    """
    grid, arguments = (-(-n // THREADS), min(m, MOST)), (Slot(X), Slot(Y), m, n)
    return RecordedLaunches([(bias_adder(NAMES[letter]), grid, (THREADS,), arguments, 1, 0)])
