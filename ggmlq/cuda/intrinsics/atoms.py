"""A format's atoms (``code``, ``scale``, ``offset``) as device functions, compiled from its file's text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...formats.atoms import Atoms, rebuild, recompiler
from ...formats.format import BlockFormat
from . import ptx
from .language import cuda, uint32
from .tables import Table

# Numba compiles a called device function for the GPU at hand: inlined ones also compile where
# there is none.
inlined: Callable[[Any], Any] = cuda.jit(device=True, inline="always")


@inlined
def _half_value(bits: Any) -> Any:
    return ptx.half_value(uint32(bits))


@inlined
def half(block: Any, at: Any) -> Any:
    """The half at bytes ``at`` and ``at + 1`` of a block, as float32."""
    return ptx.half_value(uint32(block[at]) | uint32(block[at + 1]) << 8)


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """``code``, ``scale`` and ``offset`` of a format as device functions.

    Halves are converted by the instruction for it, tables are read as global memory.
    """
    return rebuild(fmt, inlined, {"half_value": _half_value}, Table)


@cache
def verb(function: Callable[..., Any]) -> Any:
    """Any other function of a format's or a code's file, as a device function."""
    return recompiler(inlined, {"half_value": _half_value}, Table)(function)  # type: ignore[arg-type]
