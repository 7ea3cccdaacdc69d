"""Comparisons of lanes, and what is done with their answer: an integer with a bit for each lane."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from .kind import Lanes, emitted, plain, splatted

SIGNS = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def _define(op: Callable[..., Any], sign: str) -> None:
    @infer_global(op)  # type: ignore[no-untyped-call]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            left, right = args
            if not isinstance(left, Lanes) or not (right == left or isinstance(right, types.Number)):
                return None
            bits = getattr(types, f"uint{left.n}")
            return signature(bits, left, left if right == left else left.of)  # type: ignore[no-untyped-call]

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        right = args[1] if sig.args[1] == kind else splatted(builder, args[1], kind.n)
        if isinstance(kind.of, types.Float):
            answer = builder.fcmp_ordered(sign, args[0], right)
        else:
            answer = (builder.icmp_signed if kind.of.signed else builder.icmp_unsigned)(sign, args[0], right)
        return builder.bitcast(answer, ir.IntType(kind.n))

    for right in (Lanes, types.Number):
        lower_builtin(op, Lanes, right)(lower)  # type: ignore[no-untyped-call]


for _op, _sign in SIGNS.items():
    _define(_op, _sign)


def _mask(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))


@emitted
def either(typingctx: Any, bits: Any, yes: Any, no: Any, kind: Any) -> Any:
    """For each bit of an integer, the lowest first, one of two numbers, as lanes of a type."""
    lanes = Lanes(kind.dtype, bits.bitwidth)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        numbers = (splatted(builder, value, lanes.n) for value in args[1:3])
        return builder.select(_mask(builder, args[0]), *numbers)

    return lanes(plain(bits), lanes.of, lanes.of, kind), codegen


@emitted
def chosen(typingctx: Any, bits: Any, yes: Any, no: Any) -> Any:
    """For each bit of an integer, the lowest first, a lane of one of two vectors."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[0]), args[1], args[2])

    return yes(plain(bits), yes, yes), codegen


@emitted
def negated(typingctx: Any, lanes: Any, minus: Any) -> Any:
    """Lanes with a minus wherever the bit of their number is set in an integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[1]), builder.neg(args[0]), args[0])

    return lanes(lanes, minus), codegen


@emitted
def first(typingctx: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; one is."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(builder.cttz(args[0], ir.IntType(1)(1)), ir.IntType(64))

    return types.intp(bits), codegen


@emitted
def clipped(typingctx: Any, floats: Any) -> Any:
    """Floats with -2**31 for NaN and all that an int32 cannot hold."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = (ir.Constant(args[0].type, [limit] * floats.n) for limit in (-(2.0**31), 2.0**31))
        above = builder.fcmp_ordered(">=", args[0], low)
        inside = builder.and_(above, builder.fcmp_ordered("<", args[0], high))
        return builder.select(inside, args[0], low)

    return floats(floats), codegen
