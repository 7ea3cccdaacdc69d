"""Choices lane by lane: by a mask, or by the bits of an integer, the lowest for the first lane."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .kind import Lanes, emitted, plain, splatted


def _mask(builder: Any, bits: Any) -> Any:
    if isinstance(bits.type, ir.IntType):
        return builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))
    return bits


@emitted
def either(typingctx: Any, bits: Any, yes: Any, no: Any, kind: Any) -> Any:
    """For each lane of a mask one of two numbers, as lanes of a type."""
    lanes = Lanes(kind.dtype, bits.n if isinstance(bits, Lanes) else bits.bitwidth)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        numbers = (splatted(builder, value, lanes.n) for value in args[1:3])
        return builder.select(_mask(builder, args[0]), *numbers)

    return lanes(plain(bits), lanes.of, lanes.of, kind), codegen


@emitted
def chosen(typingctx: Any, bits: Any, yes: Any, no: Any) -> Any:
    """For each lane of a mask a lane of one of two vectors, or a number instead of one of them."""
    kind = yes if isinstance(yes, Lanes) else no

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[0]), args[1], args[2])

    return kind(plain(bits), kind, kind), codegen


@emitted
def negated(typingctx: Any, lanes: Any, minus: Any) -> Any:
    """Lanes, negated where a mask is set."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[1]), builder.neg(args[0]), args[0])

    return lanes(lanes, minus), codegen


@emitted
def first(typingctx: Any, mask: Any) -> Any:
    """The number of the first lane that is set in a mask; at least one has to be."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.zext(builder.cttz(bits, ir.IntType(1)(1)), ir.IntType(64))

    return types.intp(mask), codegen


@emitted
def some(typingctx: Any, mask: Any) -> Any:
    """True if a mask has any lane set."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(mask), codegen


@emitted
def clipped(typingctx: Any, floats: Any) -> Any:
    """Floats with -2**31 for NaN and all that an int32 cannot hold."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = (ir.Constant(args[0].type, [limit] * floats.n) for limit in (-(2.0**31), 2.0**31))
        above = builder.fcmp_ordered(">=", args[0], low)
        inside = builder.and_(above, builder.fcmp_ordered("<", args[0], high))
        return builder.select(inside, args[0], low)

    return floats(floats), codegen
