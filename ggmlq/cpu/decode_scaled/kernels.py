"""The kernels that decode rows of codes with scales to float32, sixteen codes at a time.

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

from ...codes import CODES, Code, MiniFloat
from ..lanes import widened
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import floats_at, ints_at, reader
from ..machine.simd import FLOATS, I8, I16, I64, INTS, vec
from ..machine.target import Target
from ..quantize_scaled.driver import LANES
from ..quantize_scaled.vectors import Vectors, vector_loop
from .driver import Codes

HALF_MANTISSA, HALF_BIAS = 10, 15
SIGN, REST = 0x8000, 0x7F  # of a half, and a code without its sign

codes = reader(Codes)


@cache
def decoder(name: str, zeros: bool, kind: Target) -> Any:
    """Compiled: decode rows ``start`` … ``stop`` of ``Codes`` to float32."""
    code = CODES[name]
    convert, nbytes = _converter(code, zeros, kind), code.bits // 8

    def work(arguments: int, start: int, stop: int) -> None:
        fields = codes(arguments)
        columns, first, r, c = fields.columns, fields.first, fields.r, fields.c
        tiles = -(-columns // c)
        for row in range(start, stop):
            line, values = fields.codes + row * fields.pitch, fields.floats + row * fields.floats_pitch
            scales = floats_at(fields.scales + 4 * tiles * ((first + row) // r), 1, tiles)[0]
            points = ints_at(fields.zeros + 4 * tiles * ((first + row) // r), 1, tiles)[0]
            left, t = 0, 0
            while left < columns:
                scale = scales[t] if fields.scales else np.float32(1)
                point = points[t] if zeros else np.int32(0)
                here = min(c, columns - left)
                convert(line + left * nbytes, values + 4 * left, here, scale, np.float32(point))
                left, t = left + c, t + 1

    return jit(work)


def _converter(code: Code, zeros: bool, kind: Target) -> Any:
    """An intrinsic: (address of codes, address of floats, count, scale, zero point)."""

    def emit(builder: Any, *values: Any) -> None:
        _emit(Vectors(builder, kind, "float32"), code, zeros, *values)

    return intrinsic_of(emit, 3, types.float32, types.float32)


def _emit(v: Vectors, code: Code, zeros: bool, source: Any, to: Any, count: Any, s: Any, z: Any) -> None:
    b, nbytes = v.builder, code.bits // 8
    scale, zero = v.splat(s), v.splat(z)

    def body(index: Any, left: Any, i: int) -> None:
        stored = v.load_some(
            b.add(source, b.mul(index, I64(nbytes))), vec(ir.IntType(code.bits), LANES), left
        )
        if isinstance(code, MiniFloat):
            values = floats_of(v, stored, code)
        elif code.min < 0:
            values = b.sitofp(b.sext(stored, INTS), FLOATS)
        else:
            values = b.sitofp(b.zext(stored, INTS), FLOATS)
        if zeros:
            values = b.fsub(values, zero)
        v.store_some(b.fmul(values, scale), b.add(to, b.mul(index, I64(4))), left)

    vector_loop(b, count, body, 2)


def floats_of(v: Vectors, stored: Any, code: MiniFloat) -> Any:
    """Codes as float32, without a scale."""
    b, count = v.builder, stored.type.count
    values = divided(v, stored, code)
    if code.bias == HALF_BIAS:
        return values
    values = b.fmul(values, ir.Constant(FLOATS, [power(code)] * count))
    nan = b.icmp_unsigned(
        ">", b.and_(stored, vec(I8, count)([REST] * count)), vec(I8, count)([code.largest] * count)
    )
    return b.select(nan, ir.Constant(FLOATS, [float("nan")] * count), values)


def divided(v: Vectors, stored: Any, code: MiniFloat) -> Any:
    """Codes as float32, divided by ``power``; of e4m3 NaN becomes a number too, larger than all others."""
    b, words, shift = v.builder, vec(I16, stored.type.count), HALF_MANTISSA - code.mantissa
    moved = b.shl(b.sext(stored, words), words([shift] * words.count))  # above them copies of the sign
    if shift < 8:
        moved = b.and_(moved, words([SIGN | REST << shift] * words.count))
    return widened(b, moved)


def power(code: MiniFloat) -> float:
    """The factor between a code and the half that has its bits."""
    return 2.0 ** (HALF_BIAS - code.bias)
