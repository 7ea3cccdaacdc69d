"""Codes with scales to float32: value = scale · (code - zero), sixteen at a time.

A float of 8 bits becomes a half by moving its bits: e5m2 is the upper byte of one, and e4m3 has a bit
more of mantissa and another bias, which a multiplication by a power of two puts right. The CPU converts
halves, subnormal ones too, as fast as anything else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ..codes import Code, MiniFloat
from ..scaled import Matrix
from ..threads import share
from .lanes.halves import widened
from .machine.jit import jit
from .machine.simd import FLOATS, I8, I16, I64, INTS, vec
from .machine.target import Target, target
from .machine.words import intrinsic
from .quantize_scaled.vectors import LANES, Vectors, walk

HALF_MANTISSA, HALF_BIAS = 10, 15
SLAB = 1 << 20  # codes that are decoded before they are converted further
GRAIN = 1 << 15  # codes that a thread decodes at a time
NO_ZEROS = np.zeros((1, 1), np.int32)


def decode(m: Matrix, rows: slice, out: NDArray[np.float32]) -> None:
    """Some rows of a matrix into ``out``."""
    work, first = kernel(m.code, m.zeros is not None, target()), rows.start
    lines = m.codes.ctypes.data + first * m.codes.strides[0], m.codes.strides[0]
    scales = np.ascontiguousarray(m.scales)
    zeros = NO_ZEROS if m.zeros is None else np.ascontiguousarray(m.zeros, np.int32)
    tile, to = (m.over.columns, first, m.over.r, m.over.c), (out.ctypes.data, out.strides[0])
    if not out.size:
        return
    grain = max(1, GRAIN // m.over.columns)
    share(lambda a, b: work(lines, tile, scales, zeros, to, a, b), rows.stop - first, grain)


def decode_into(m: Matrix, out: NDArray[Any]) -> None:
    """All of a matrix, in any dtype of floats: float32 first, a few rows at a time."""
    if out.dtype == np.float32:
        decode(m, slice(0, len(out)), out)
        return
    step = max(1, SLAB // m.over.columns)
    with np.errstate(all="ignore"):
        for start in range(0, len(out), step):
            rows = slice(start, min(start + step, len(out)))
            part = np.empty((rows.stop - start, m.over.columns), np.float32)
            decode(m, rows, part)
            out[rows] = part


@cache
def kernel(code: Code, zeros: bool, kind: Target) -> Any:
    """Compiled: rows ``start`` … ``stop`` of those from ``lines`` on, whose first is row ``tile[1]``."""
    convert, nbytes = _converter(code, zeros, kind), code.bits // 8

    def work(lines: Any, tile: Any, scales: Any, points: Any, to: Any, start: int, stop: int) -> None:
        columns, first, r, c = tile
        for row in range(start, stop):
            line, made, band = lines[0] + row * lines[1], to[0] + row * to[1], (first + row) // r
            left, t = 0, 0
            while left < columns:
                count = min(c, columns - left)
                point = points[band, t] if zeros else np.int32(0)
                convert(line + left * nbytes, made + 4 * left, count, scales[band, t], np.float32(point))
                left, t = left + c, t + 1

    return jit(work)


def _converter(code: Code, zeros: bool, kind: Target) -> Any:
    """An intrinsic: (address of codes, address of floats, count, scale, zero point)."""

    @intrinsic
    def convert(typing: Any, source: Any, to: Any, count: Any, scale: Any, zero: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _emit(Vectors(builder, kind, "float32"), code, zeros, *args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3, types.float32, types.float32), emit

    return convert


def _emit(v: Vectors, code: Code, zeros: bool, source: Any, to: Any, count: Any, s: Any, z: Any) -> None:
    b, nbytes = v.builder, code.bits // 8
    scale, zero = v.splat(s), v.splat(z)

    def body(index: Any, left: Any, i: int) -> None:
        stored = v.some(b.add(source, b.mul(index, I64(nbytes))), vec(ir.IntType(code.bits), LANES), left)
        if isinstance(code, MiniFloat):
            values = floats_of(v, stored, code)
        elif code.min < 0:
            values = b.sitofp(b.sext(stored, INTS), FLOATS)
        else:
            values = b.sitofp(b.zext(stored, INTS), FLOATS)
        if zeros:
            values = b.fsub(values, zero)
        v.keep(b.fmul(values, scale), b.add(to, b.mul(index, I64(4))), left)

    walk(b, count, body, 2)


def floats_of(v: Vectors, stored: Any, code: MiniFloat) -> Any:
    """Codes as float32, without a scale."""
    b, words = v.builder, vec(I16, LANES)
    wide = b.zext(stored, words)
    size = b.and_(wide, words([0x7F] * LANES))
    sign = b.shl(b.xor(wide, size), words([8] * LANES))
    half = b.or_(b.shl(size, words([HALF_MANTISSA - code.mantissa] * LANES)), sign)
    values = widened(b, half)
    if code.bias == HALF_BIAS:
        return values
    power = 2.0 ** (HALF_BIAS - code.bias)
    values = b.fmul(values, ir.Constant(FLOATS, [power] * LANES))
    nan = b.icmp_unsigned(
        ">", b.and_(stored, vec(I8, LANES)([0x7F] * LANES)), vec(I8, LANES)([code.largest] * LANES)
    )
    return b.select(nan, ir.Constant(FLOATS, [float("nan")] * LANES), values)
