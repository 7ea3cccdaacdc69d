"""Intrinsics for compiled code: functions that write LLVM code of their own wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import types

from .numba_names import cgutils, intrinsic


def intrinsic_of(emit: Callable[..., None], words: int, *others: Any) -> Any:
    """An intrinsic without a result, for which ``emit(builder, *values)`` writes the code.

    Its arguments are ``words`` integers of 64 bits, then numbers of the types ``others``.
    """
    kinds = (*[types.int64] * words, *others)

    def insert(typing: Any, *args: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            emit(builder, *values)
            return context.get_dummy_value()

        return types.void(*kinds), lower

    # Numba matches a call with a signature, which has to have each parameter by itself.
    names = ("typing", *(f"value_{i}" for i in range(len(kinds))))
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    insert.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(insert)


# --- Arithmetic of float32 that Numba has no name for ---------------------------------------------


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """The number a · b + c, rounded once."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), emit


@intrinsic
def root(typing: Any, x: Any) -> Any:
    """The square root of a float by the processor's instruction; a kernel in a pack calls no library."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = args[0].type
        name = f"llvm.sqrt.f{x.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number]), name)
        return builder.call(function, args)

    return x(x), emit


@intrinsic
def bits(typing: Any, x: Any) -> Any:
    """The bits of a float32, as a number that is never negative."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float32), emit


@intrinsic
def from_bits(typing: Any, x: Any) -> Any:
    """The float32 of some bits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), emit
