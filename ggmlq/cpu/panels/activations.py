"""The kernel that quantizes activations to 8-bit codes, written straight into the rows that tiles read.

Arithmetic ``q8``: 32 share a scale amax/127; a code is x · (127/amax) to the nearest integer, ties
to even. Runs with a NaN or an infinity get codes of 0 and a scale that is not finite, so that
every product with them is NaN.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ...formats.packing import RUN
from ..machine.arguments import reader
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.simd import F32, FLOATS, I8, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from .layout import PanelLayout, batch, x_run_bytes
from .operands import Activations

ROUND = 12582912.0  # 1.5 · 2**23: adding it leaves the nearest integer in the last bits, ties to even
INFINITY = 0x7F800000


activations = reader(Activations)


@cache
def quantizer(groups: int, offset: bool, target: Target) -> Any:
    """Compiled: quantize rows ``first`` … ``stop`` of ``Activations`` to codes, scales and sums."""
    write, together = _run_writer(groups, offset, target), inner(batch)
    size = x_run_bytes(PanelLayout(offset=offset, group=16 if groups == 2 else 32))

    def quantize(arguments: int, first: int, stop: int) -> None:
        fields = activations(arguments)
        begin = first // fields.most * fields.most  # of the batch
        rows = together(fields.rows - begin, fields.most)
        for row in range(first, stop):
            while row >= begin + rows:
                begin += rows
                rows = together(fields.rows - begin, fields.most)
            to = fields.x_rows + begin * fields.row_bytes + (row - begin) * size
            for run in range(fields.columns // RUN):
                values = fields.values + 4 * (row * fields.columns + RUN * run)
                write(values, to + run * rows * size, fields.zero, fields.start)

    return jit(quantize)


def _run_writer(groups: int, offset: bool, target: Target) -> Any:
    """An intrinsic for one run: (address of 32 floats, address of the run that they become, zero, start)."""
    return intrinsic_of(lambda builder, *words: _emit(Simd(builder, target), groups, offset, *words), 4)


def _emit(simd: Simd, groups: int, offset: bool, source: Any, to: Any, zero: Any, start: Any) -> None:
    b = simd.builder
    x = [simd.load(b.add(source, I64(64 * i)), FLOATS) for i in range(2)]
    bits = [b.and_(b.bitcast(part, INTS), _ints(0x7FFFFFFF)) for part in x]
    larger = b.select(b.icmp_signed(">", bits[0], bits[1]), bits[0], bits[1])
    most = simd.call("llvm.vector.reduce.smax.v16i32", I32, larger)  # NaN above infinity above numbers
    amax = b.bitcast(most, F32)
    scale = b.fdiv(amax, F32(127.0))
    inverse = simd.splat(b.fdiv(F32(127.0), amax))
    finite = simd.splat(b.sext(b.icmp_signed("<", most, I32(INFINITY)), I32))
    sums = []
    for i, part in enumerate(x):
        codes = b.and_(_codes(b, part, inverse), finite)
        simd.store(b.trunc(codes, vec(I8, 16)), b.add(to, I64(16 * i)))
        sums.append(simd.call("llvm.vector.reduce.add.v16i32", I32, codes))
    simd.store(scale, b.add(to, I64(RUN)))
    for group, total in enumerate(sums if groups == 2 else [b.add(*sums)]):
        at = RUN + 4 + 4 * group
        simd.store(b.sub(b.trunc(start, I32), b.mul(b.trunc(zero, I32), total)), b.add(to, I64(at)))
        if offset:
            s = b.fmul(scale, b.sitofp(b.neg(total), F32))
            simd.store(s, b.add(to, I64(at + 4 * groups)))


def _codes(b: Any, x: Any, inverse: Any) -> Any:
    """The integers nearest to x · inverse, as int32."""
    zeros = ir.Constant(FLOATS, None)
    v = b.select(b.fcmp_ordered("==", x, zeros), zeros, b.fmul(x, inverse))  # 0 · inf is not 0
    for limit, beyond in ((127.0, ">"), (-127.0, "<")):  # inverse is infinite where amax is tiny
        edge = ir.Constant(FLOATS, [limit] * 16)
        v = b.select(b.fcmp_ordered(beyond, v, edge), edge, v)
    rounded = b.fadd(v, ir.Constant(FLOATS, [ROUND] * 16))
    return b.sub(b.bitcast(rounded, INTS), _ints(0x4B400000))


def _ints(value: int) -> ir.Constant:
    return ir.Constant(INTS, [value] * 16)
