"""The type of vectors in compiled code (``Lanes``), and the helpers of all functions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

INDEX = ir.IntType(32)


class Lanes(types.Type):
    """n numbers of one type, side by side; of booleans they are a mask."""

    def __init__(self, of: Any, n: int) -> None:
        self.of, self.n = of, n
        self.bitwidth = n * (1 if isinstance(of, types.Boolean) else of.bitwidth)
        super().__init__(f"Lanes({of} x {n})")


def element(of: Any) -> ir.Type:
    """LLVM's type of a number."""
    if isinstance(of, types.Boolean):
        return ir.IntType(1)
    if isinstance(of, types.Float):
        return ir.FloatType() if of.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(of.bitwidth)


def order(numbers: Iterable[int]) -> ir.Constant:
    """The last operand of a shuffle: for each lane the number of the lane that it takes."""
    listed = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(listed)), listed)


def vector(kind: Lanes) -> ir.VectorType:
    """LLVM's type of lanes."""
    return ir.VectorType(element(kind.of), kind.n)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, vector(kind))  # type: ignore[no-untyped-call]


def plain(kind: Any) -> Any:
    """The type of a constant without its value."""
    return types.unliteral(kind)  # type: ignore[no-untyped-call]


def splatted(builder: Any, value: Any, n: int) -> Any:
    """A vector of LLVM code that holds a number n times."""
    kind = ir.VectorType(value.type, n)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, INDEX(0))
    return builder.shuffle_vector(first, nothing, order([0] * n))


def emitted(function: Callable[..., Any]) -> Any:
    """An intrinsic of compiled code, from the function that writes its LLVM code; constants are literals."""
    return intrinsic(prefer_literal=True)(function)


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: ir.Type) -> Any:
    """Pointer to an element of an array, as a pointer to another type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), to.as_pointer())
