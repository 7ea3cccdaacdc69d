"""How the CPU side compiles: one decorator, so that every kernel gets the same rules.

The global lock is released, division by zero gives infinity as in C, and no arithmetic is
reordered: sums keep the order that is written, products and sums are not contracted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel when it is first called."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def inline(function: Callable[..., Any]) -> Any:
    """The same for a small function in a loop: it becomes part of every kernel that calls it.

    LLVM leaves a longer one apart, and a call copies the shape of every array that it is given.
    """
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
