"""The type of vectors, their arithmetic, and what every function on them is made with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

INDEX = ir.IntType(32)


class Lanes(types.Type):
    """n numbers of one type, side by side."""

    def __init__(self, of: Any, n: int) -> None:
        self.of, self.n = of, n
        super().__init__(f"Lanes({of} x {n})")


def element(of: Any) -> ir.Type:
    """LLVM's type of a number."""
    if isinstance(of, types.Float):
        return ir.FloatType() if of.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(of.bitwidth)


def order(numbers: Iterable[int]) -> ir.Constant:
    """The last operand of a shuffle."""
    listed = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(listed)), listed)


def vector(kind: Lanes) -> ir.VectorType:
    """LLVM's type of lanes."""
    return ir.VectorType(element(kind.of), kind.n)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, vector(kind))  # type: ignore[no-untyped-call]


INTEGER = {
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.lshift: "shl",
    operator.rshift: "lshr", operator.add: "add", operator.sub: "sub", operator.mul: "mul",
}  # fmt: skip
FLOAT = {
    operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv",
}  # fmt: skip


def plain(kind: Any) -> Any:
    """The type of a constant without its value."""
    return types.unliteral(kind)  # type: ignore[no-untyped-call]


def splatted(builder: Any, value: Any, n: int) -> Any:
    """A number n times."""
    kind = ir.VectorType(value.type, n)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, INDEX(0))
    return builder.shuffle_vector(first, nothing, order([0] * n))


def _define(op: Callable[..., Any]) -> None:
    @infer_global(op)  # type: ignore[no-untyped-call]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) != 2 or not isinstance(args[0], Lanes):
                return None
            left, right = args
            if right != left and not isinstance(right, types.Number):
                return None
            other = left if right == left else left.of
            return signature(left, left, other)  # type: ignore[no-untyped-call]

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        right = args[1] if sig.args[1] == kind else splatted(builder, args[1], kind.n)
        if isinstance(kind.of, types.Float):
            return getattr(builder, FLOAT[op])(args[0], right)
        name = "ashr" if op is operator.rshift and kind.of.signed else INTEGER[op]
        return getattr(builder, name)(args[0], right)

    for right in (Lanes, types.Number):
        lower_builtin(op, Lanes, right)(lower)  # type: ignore[no-untyped-call]


for _op in INTEGER | FLOAT:
    _define(_op)


def emitted(function: Callable[..., Any]) -> Any:
    """A function of compiled code given by the LLVM code it becomes; it sees constants as such."""
    return intrinsic(prefer_literal=True)(function)


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: ir.Type) -> Any:
    """Pointer to an element of an array, as a pointer to another type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), to.as_pointer())
