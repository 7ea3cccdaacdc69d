"""The decorator of all compiled functions of the CPU side, so that every kernel gets the same rules.

The global lock is released, division by zero gives infinity as in C, and no arithmetic is
reordered: sums keep the order that is written, products and sums are not contracted.

Numba is imported by the first function that is decorated (``numba_names.py``), and not before: most products
take code that came with the package (``kernels.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def jit(function: Callable[..., Any], on_disk: bool = True, **more: Any) -> Any:
    """Compile a kernel when it is first called; ``on_disk=False``: for small parts of other kernels."""
    return _numba_names().dispatcher(function, on_disk, nogil=True, error_model="numpy", **more)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a part of other kernels, which hold its code; alone it is not on the disk."""
    return jit(function, on_disk=False)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a part of a hot loop into it, however long it is: LLVM may not leave it apart.

    A call copies the shape of every array that it passes, which can cost more than the work.
    """
    return jit(function, on_disk=False, forceinline=True)


@cache
def _numba_names() -> Any:
    return import_module(".numba_names", __package__)
