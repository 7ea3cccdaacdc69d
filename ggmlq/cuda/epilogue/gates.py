"""The kernel of a gate behind two products: ``act(gate) · up``, rounded once, in the kind of the result."""

from __future__ import annotations

from functools import cache
from math import log, pi, sqrt
from typing import Any

import numpy as np

from ...dispatch.epilogue import Epilogue
from ..activations.layers import GATES, numbered_gating
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.assembly import FLOAT, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.language import SIMULATED, cuda, ir, types, uint32, uint64
from ..intrinsics.wgmma import unpacked
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from .results import FEW, LETTERS, residual_of, store_as

# The function of a gate as a factor: ``act(g)`` times the sums of ``wgmma`` of another product.
#
# g is the float32 result of the gate's product, [m, n] like that of this one. Blocks that share a tile
# multiply each its part of the sums, for a factor is the same for all parts; where that part overflows, the
# result is infinite or NaN. Sums and places are those of results.py.
#
#     silu    g / (1 + exp(-g))
#     gelu    g / (1 + exp(-g (SLOPE + CUBE g²))), which is that by tanh

MOST_GATED = 96  # columns of a tile; with wider ones a kernel behind is faster
FACTORS = ("silu", "gelu")
FIRST = 4  # the kind of the first of them; kinds of residuals come before
SLOPE, CUBE = sqrt(8 / pi), 0.044715 * sqrt(8 / pi)  # of gelu


def addend_of(end: Epilogue) -> tuple[Any, int]:
    """The residual or the gate's sums that a launch is given, or 0 for neither, and its kind."""
    return residual_of(end.residual) if end.gate is None else (end.residual, FIRST + FACTORS.index(end.gate))


@cache
def gate_multiplier(columns: int) -> Any:
    """The device function (sums, gate's sums, kind, column, row, m, n) for sums times the factor."""
    count = columns // 2
    kind, result = types.UniTuple(f32, count), ir.LiteralStructType([FLOAT] * count)
    text, constraints = _multiplying(count), [*["=f"] * count, *map(str, range(count)), *"lrrrrr"]

    def multiply(sums: Any, gate: Any, which: Any, column: Any, row: Any, m: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = [*unpacked(builder, sums, count), *arguments]
        results = emit_assembly(builder, result, text, constraints, values, effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, results, count))

    return multiply if SIMULATED else as_intrinsic(multiply, kind(kind, u64, *(u32,) * 5), emit)


def _word(value: float) -> str:
    """A float32 as assembly has it."""
    return f"0f{int(np.float32(value).view(np.uint32)):08X}"


def _multiplying(count: int) -> str:
    """The assembly of ``multiply``. Operands: the sums twice, then the others in their order."""
    one, straight, slope, cube = (_word(value) for value in (1, *(-f / log(2) for f in (1, SLOPE, CUBE))))
    gate, which, column, row, m, n = (f"${2 * count + i}" for i in range(6))
    lines = [f"{{.reg .pred gelu, p, low, high; .reg .b32 c; .reg .f32 v, e, w<{FEW}>;"]
    lines += [".reg .b64 at, above, pitch, far, of_row;"]
    lines += [f"setp.ne.u32 gelu, {which}, {FIRST}; setp.lt.u32 low, {row}, {n};"]
    lines += [f"add.u32 c, {row}, 8; setp.lt.u32 high, c, {n};"]
    lines += [f"mul.wide.u32 at, {column}, {n}; cvt.u64.u32 of_row, {row}; add.u64 at, at, of_row;"]
    lines += [f"shl.b64 at, at, 2; add.u64 at, at, {gate}; add.u64 above, at, 32;"]
    lines += [f"mul.wide.u32 pitch, {n}, 4; mul.lo.u64 far, pitch, 7;"]
    for first in range(0, count, FEW):
        group = range(first, min(first + FEW, count))
        lines += ["bar.warp.sync -1;"] if first else []  # loads do not pass it, for want of registers
        for i in group[::4]:
            for e, step in enumerate(("pitch", "far")):
                lines += [f"add.u32 c, {column}, {2 * i + e};"]
                for side, place, more in (("low", "at", 0), ("high", "above", 2)):
                    word = f"w{i + e + more - first}"
                    lines += [f"setp.lt.and.u32 p, c, {m}, {side}; mov.b32 {word}, 0;"]
                    lines += [f"@p ld.global.f32 {word}, [{place}]; add.u64 {place}, {place}, {step};"]
        for i in group:
            v = f"w{i - first}"
            lines += [f"mul.f32 e, {v}, {v}; fma.rn.f32 e, e, {cube}, {slope};"]
            lines += [f"@!gelu mov.f32 e, {straight}; mul.f32 e, {v}, e; ex2.approx.f32 e, e;"]
            lines += [f"add.f32 e, e, {one}; rcp.approx.f32 e, e; mul.f32 v, {v}, e;"]
            lines += [f"mul.f32 ${i}, ${i}, v;"]
    return "\n".join([*lines, "}"])


THREADS = 256


@family()
def gater() -> Kernel:
    """The kernel: a thread makes a result."""
    act, load_float, take_turn = numbered_gating(), ptx.load_float, dependent_launch.take_turn

    def gate(
        gates: Any, ups: Any,  # float32 [count]
        y: Any, y_kind: Any,  # [count], of a kind by its place in KINDS
        which: Any,  # activation, by its place in GATES
        count: Any,
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        if i < count:
            at = i * uint64(4)
            value = act(which, load_float(gates + at), load_float(ups + at))
            store_as(y + (at if y_kind == uint32(0) else i * uint64(2)), value, y_kind)

    parameters = (uint64, uint64, uint64, uint32, uint32, uint64)
    return Kernel("gates behind two products", gate, *parameters, threads=THREADS, early=True)


def gated(activation: str, gates: Any, ups: Any, y: Any) -> None:
    """``y = act(gates) · ups`` of float32 arrays; y may be one of them, or have 16 bits."""
    blocks = -(-y.size // THREADS)
    gater()((blocks,), (THREADS,), gates, ups, y, LETTERS[y.dtype.char], GATES.index(activation), y.size)


def gate_product(activation: str, gate: Any, up: Any) -> Any:
    """``act(gate) · up`` of float32 arrays of one shape, with any strides."""
    xp = cupy()
    y = xp.empty(gate.shape, np.float32)
    gated(activation, xp.ascontiguousarray(gate), xp.ascontiguousarray(up), y)
    return y
