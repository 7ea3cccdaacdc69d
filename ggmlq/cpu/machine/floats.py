"""Arithmetic of float32 that Numba has no name for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .numba_names import intrinsic


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """The number a · b + c, rounded once."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), emit


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
