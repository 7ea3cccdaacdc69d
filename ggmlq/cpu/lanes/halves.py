"""Halves inside compiled code: Numba has no float16 on the CPU, and not every CPU converts it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .kind import Lanes, address, emitted


def _widened(builder: Any, bits: Any) -> Any:
    """16 bits of a half, or a vector of them, to float32: exact, subnormals included.

    Its exponent and mantissa moved into place are the float divided by 2**112. LLVM's own
    conversion needs a library call on CPUs without the instruction.
    """
    number, n = ir.IntType(32), getattr(bits.type, "count", 0)
    kind = ir.VectorType(number, n) if n else number
    floats = ir.VectorType(ir.FloatType(), n) if n else ir.FloatType()

    def all_of(of: ir.Type, value: Any) -> ir.Constant:
        return ir.Constant(of, [value] * n if n else value)

    wide = builder.zext(bits, kind)
    shifted = builder.shl(builder.and_(wide, all_of(kind, 0x7FFF)), all_of(kind, 13))
    value = builder.fmul(builder.bitcast(shifted, floats), all_of(floats, 2.0**112))
    too_large = builder.fcmp_ordered(">=", value, all_of(floats, 65536.0))
    exponent = builder.select(too_large, all_of(kind, 0x7F800000), all_of(kind, 0))
    sign = builder.shl(builder.and_(wide, all_of(kind, 0x8000)), all_of(kind, 16))
    whole = builder.or_(builder.or_(builder.bitcast(value, kind), exponent), sign)
    return builder.bitcast(whole, floats)


@emitted
def half(typingctx: Any, array: Any, at: Any) -> Any:
    """The half that starts at an element of a byte array, as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], ir.IntType(16))
        return _widened(builder, builder.load(place, align=1))

    return types.float32(array, types.intp), codegen


@emitted
def widen(typingctx: Any, bits: Any) -> Any:
    """The 16 bits of a half, or lanes of them, as float32."""
    floats = Lanes(types.float32, bits.n) if isinstance(bits, Lanes) else types.float32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _widened(builder, args[0])

    return floats(bits), codegen
