"""A vector of 16 numbers as a Numba type: what one register of AVX-512 holds.

Plain arithmetic and comparisons work on vectors, also beside a plain number. They are LLVM's own
vector operations: a CPU with shorter registers gets several instructions for one. Products and
sums are never contracted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast, models, register_model

LANES = 16
BITS = ir.IntType(1)
KINDS = {"float": ir.FloatType(), "int": ir.IntType(32), "bool": BITS}


class Vector(types.Type):
    """The type of 16 float32, int32 or bool."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"Vector({kind})")


FLOAT, INT, BOOL = map(Vector, KINDS)


def llvm(vector: Vector) -> ir.VectorType:
    """The LLVM type."""
    return ir.VectorType(KINDS[vector.kind], LANES)


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, llvm(vector))  # type: ignore[no-untyped-call]


def splat(builder: Any, number: Any) -> Any:
    """The same LLVM value in every lane."""
    kind = ir.VectorType(number.type, LANES)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


def constant(vector: Vector, number: float) -> ir.Constant:
    """A known number in every lane."""
    return ir.Constant(llvm(vector), [number] * LANES)


@lower_cast(types.Number, Vector)  # type: ignore[no-untyped-call]
@lower_cast(types.Boolean, Vector)  # type: ignore[no-untyped-call]
def _from_number(context: Any, builder: Any, source: Any, target: Vector, value: Any) -> Any:
    scalar = {"float": types.float32, "int": types.int32, "bool": types.boolean}[target.kind]
    return splat(builder, context.cast(builder, value, types.unliteral(source), scalar))  # type: ignore[no-untyped-call]


def _define(op: Callable[..., Any], kinds: str, lower: Callable[..., Any], *, compares: bool = False) -> None:
    """Let an operator take two vectors of one of the kinds, or one and a number."""

    @infer_global(op)  # type: ignore[no-untyped-call]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            found = {arg for arg in args if isinstance(arg, Vector)}
            if len(found) != 1 or (vector := found.pop()).kind not in kinds:
                return None
            if not all(isinstance(arg, Vector | types.Number | types.Boolean) for arg in args):
                return None
            return signature(BOOL if compares else vector, *[vector] * len(args))  # type: ignore[no-untyped-call]

    for arity in (1, 2):

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return lower(builder, sig.args[0], *args)

        lower_builtin(op, *[Vector] * arity)(code)  # type: ignore[no-untyped-call]


def _arithmetic(of_floats: str, of_ints: str) -> Callable[..., Any]:
    def lower(builder: Any, vector: Vector, *args: Any) -> Any:
        return getattr(builder, of_floats if vector.kind == "float" else of_ints)(*args)

    return lower


def _comparison(sign: str) -> Callable[..., Any]:
    def lower(builder: Any, vector: Vector, a: Any, b: Any) -> Any:
        if vector.kind != "float":
            return builder.icmp_signed(sign, a, b)
        compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        return compare(sign, a, b)

    return lower


def _negative(builder: Any, vector: Vector, a: Any) -> Any:
    return builder.fneg(a) if vector.kind == "float" else builder.neg(a)


def _inverted(builder: Any, vector: Vector, a: Any) -> Any:
    return builder.not_(a)


for _op, _kinds, _lower in (
    (operator.add, "float int", _arithmetic("fadd", "add")),
    (operator.sub, "float int", _arithmetic("fsub", "sub")),
    (operator.mul, "float int", _arithmetic("fmul", "mul")),
    (operator.truediv, "float", _arithmetic("fdiv", "")),
    (operator.and_, "int bool", _arithmetic("", "and_")),
    (operator.or_, "int bool", _arithmetic("", "or_")),
    (operator.xor, "int bool", _arithmetic("", "xor")),
    (operator.lshift, "int", _arithmetic("", "shl")),
    (operator.rshift, "int", _arithmetic("", "ashr")),
    (operator.neg, "float int", _negative),
    (operator.invert, "bool", _inverted),
):
    _define(_op, _kinds, _lower)

for _op, _sign in (
    (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"),
    (operator.ge, ">="), (operator.eq, "=="), (operator.ne, "!="),
):  # fmt: skip
    _define(_op, "float int", _comparison(_sign), compares=True)
