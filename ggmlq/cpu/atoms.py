"""Atoms of formats and codes, compiled for the CPU from the text in their files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..formats.atoms import Atoms, rebuild, recompiler
from ..formats.format import BlockFormat
from .machine.jit import inner, jit


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """The compiled ``code``, ``scale`` and ``offset`` of a format, which kernels may call."""
    return rebuild(fmt, lambda function: jit(function, on_disk=False))


@cache
def verb(function: Callable[..., Any]) -> Any:
    """The compiled version of another function of a format's or a code's file, with all that it calls."""
    return recompiler(inner, {})(function)  # type: ignore[arg-type]
