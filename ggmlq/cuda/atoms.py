"""A format's atoms, compiled for the GPU from the text in its file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda

from ..formats.atoms import Atoms, rebuild
from ..formats.format import BlockFormat


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """``code``, ``scale`` and ``offset`` of a format as device functions.

    They are inlined by Numba, because it compiles a called device function for the GPU at hand:
    inlined ones also compile where there is none.
    """
    compiler: Callable[[Any], Any] = cuda.jit(device=True, inline="always")  # type: ignore[no-untyped-call]
    return rebuild(fmt, compiler)
