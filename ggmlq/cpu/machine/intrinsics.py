"""Intrinsics for compiled code: functions that write LLVM code of their own wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from numba import types

from .numba_names import intrinsic


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
