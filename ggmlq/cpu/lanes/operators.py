"""Arithmetic and comparisons of lanes, also beside a plain number, which takes their type.

They are LLVM's own vector operations. Products and sums are never contracted. A comparison gives a
mask: lanes of booleans.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast

from .kind import Lanes, plain, splatted

Names = dict[Callable[..., Any], str]
FLOAT: Names = {
    operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv",
    operator.neg: "fneg",
}  # fmt: skip
MASK: Names = {
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.invert: "not_",
}  # fmt: skip
INTEGER: Names = {
    **MASK, operator.lshift: "shl", operator.rshift: "lshr", operator.add: "add",
    operator.sub: "sub", operator.mul: "mul", operator.neg: "neg",
}  # fmt: skip
COMPARISONS: Names = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def _name(op: Callable[..., Any], of: Any) -> str:
    """LLVM's name of an operator on numbers of a type; empty where there is none."""
    if isinstance(of, types.Float):
        return FLOAT.get(op, "")
    if isinstance(of, types.Boolean):
        return MASK.get(op, "")
    return "ashr" if op is operator.rshift and of.signed else INTEGER.get(op, "")


@lower_cast(types.Number, Lanes)  # type: ignore[no-untyped-call]
@lower_cast(types.Boolean, Lanes)  # type: ignore[no-untyped-call]
def _from_number(context: Any, builder: Any, source: Any, target: Lanes, value: Any) -> Any:
    return splatted(builder, context.cast(builder, value, plain(source), target.of), target.n)


def _define(op: Callable[..., Any]) -> None:
    @infer_global(op)  # type: ignore[no-untyped-call]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            kinds = {arg for arg in args if isinstance(arg, Lanes)}
            if len(kinds) != 1 or not all(isinstance(arg, Lanes | types.Number) for arg in args):
                return None
            kind = kinds.pop()
            if op in COMPARISONS:
                return signature(Lanes(types.boolean, kind.n), kind, kind)  # type: ignore[no-untyped-call]
            return signature(kind, *[kind] * len(args)) if _name(op, kind.of) else None  # type: ignore[no-untyped-call]

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        of = sig.args[0].of
        if op not in COMPARISONS:
            return getattr(builder, _name(op, of))(*args)
        if not isinstance(of, types.Float):
            compare = builder.icmp_signed if of.signed else builder.icmp_unsigned
        else:
            compare = builder.fcmp_unordered if op is operator.ne else builder.fcmp_ordered
        return compare(COMPARISONS[op], *args)

    for arity in (1, 2):
        lower_builtin(op, *[Lanes] * arity)(lower)  # type: ignore[no-untyped-call]


for _op in FLOAT | INTEGER | COMPARISONS:
    _define(_op)
