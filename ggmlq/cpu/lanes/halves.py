"""Halves inside compiled code: Numba has no float16 on the CPU, and not every CPU converts it.

Without the instruction LLVM would call a library function that may not be there, so then the bits
are moved by hand.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..machine.features import compiled_for
from .kind import Lanes, address, emitted, vector

I16, I32, F16, F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()


def native() -> bool:
    """True if the CPU converts halves."""
    return bool({"f16c", "neon"} & compiled_for())


def _like(of: ir.Type, value: Any) -> ir.Type:
    """A type with as many lanes as a value."""
    return ir.VectorType(of, value.type.count) if isinstance(value.type, ir.VectorType) else of


def _all(kind: ir.Type, value: Any) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def widened(builder: Any, bits: Any) -> Any:
    """16 bits of a half, or lanes of them, to float32: exact, subnormals included.

    Exponent and mantissa moved into place are the float divided by 2**112.
    """
    ints, floats = _like(I32, bits), _like(F32, bits)
    if native():
        return builder.fpext(builder.bitcast(bits, _like(F16, bits)), floats)
    wide = builder.zext(bits, ints)
    shifted = builder.shl(builder.and_(wide, _all(ints, 0x7FFF)), _all(ints, 13))
    value = builder.fmul(builder.bitcast(shifted, floats), _all(floats, 2.0**112))
    too_large = builder.fcmp_ordered(">=", value, _all(floats, 65536.0))
    exponent = builder.select(too_large, _all(ints, 0x7F800000), _all(ints, 0))
    sign = builder.shl(builder.and_(wide, _all(ints, 0x8000)), _all(ints, 16))
    return builder.bitcast(builder.or_(builder.or_(builder.bitcast(value, ints), exponent), sign), floats)


def narrowed(builder: Any, value: Any) -> Any:
    """Float32, or lanes of it, to the 16 bits of the nearest half, ties to even; a NaN stays one.

    By hand, one of three results is selected: adding 0.5 leaves the bits of a subnormal half; moving the
    exponent and rounding as an integer gives a normal one, or infinity by carry; the third: larger ones.
    """
    ints, words = _like(I32, value), _like(I16, value)
    if native():
        return builder.bitcast(builder.fptrunc(value, _like(F16, value)), words)
    bits = builder.bitcast(value, ints)
    magnitude = builder.and_(bits, _all(ints, 0x7FFFFFFF))
    positive = builder.bitcast(magnitude, value.type)
    tiny = builder.bitcast(builder.fadd(positive, _all(value.type, 0.5)), ints)
    tiny = builder.sub(tiny, _all(ints, 0x3F000000))
    odd = builder.and_(builder.lshr(magnitude, _all(ints, 13)), _all(ints, 1))
    rounded = builder.add(builder.add(magnitude, _all(ints, 0xC8000FFF)), odd)
    is_nan = builder.icmp_unsigned(">", magnitude, _all(ints, 0x7F800000))
    beyond = builder.select(is_nan, _all(ints, 0x7E00), _all(ints, 0x7C00))
    is_tiny = builder.icmp_unsigned("<", magnitude, _all(ints, 0x38800000))
    result = builder.select(is_tiny, tiny, builder.lshr(rounded, _all(ints, 13)))
    result = builder.select(builder.icmp_unsigned(">=", magnitude, _all(ints, 0x47800000)), beyond, result)
    sign = builder.and_(builder.lshr(bits, _all(ints, 16)), _all(ints, 0x8000))
    return builder.trunc(builder.or_(result, sign), words)


@emitted
def half(typingctx: Any, array: Any, at: Any) -> Any:
    """The half that starts at an element of a byte array, as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], I16)
        return widened(builder, builder.load(place, align=1))

    return types.float32(array, types.intp), codegen


@emitted
def widen(typingctx: Any, bits: Any) -> Any:
    """The 16 bits of a half, or lanes of them, as float32."""
    floats = Lanes(types.float32, bits.n) if isinstance(bits, Lanes) else types.float32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return widened(builder, args[0])

    return floats(bits), codegen


@emitted
def narrow(typingctx: Any, floats: Any) -> Any:
    """Float32, or lanes of it, as the 16 bits of the nearest half."""
    words = Lanes(types.uint16, floats.n) if isinstance(floats, Lanes) else types.uint16

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return narrowed(builder, args[0])

    return words(floats), codegen


@emitted
def store_floats(typingctx: Any, array: Any, at: Any, floats: Any) -> Any:
    """Write lanes of float32 to an array of float32, of float64, or of halves as uint16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = vector(Lanes(array.dtype, floats.n))
        if array.dtype == types.uint16:
            value = narrowed(builder, args[2])
        else:
            value = builder.fpext(args[2], to) if array.dtype == types.float64 else args[2]
        builder.store(value, address(context, builder, sig.args[0], args[0], args[1], to), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, floats), codegen
