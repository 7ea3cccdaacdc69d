"""What Numba has no name for in float32 arithmetic."""

from __future__ import annotations

from typing import Any

from numba import types

from .jit import intrinsic


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A · b + c, rounded once."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), emit
