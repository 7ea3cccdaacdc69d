"""A format's atoms, compiled for the CPU from the text in its file."""

from __future__ import annotations

from functools import cache

from ..formats.atoms import Atoms, rebuild
from ..formats.format import BlockFormat
from .machine.jit import jit


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """``code``, ``scale`` and ``offset`` of a format as functions that other kernels may call."""
    return rebuild(fmt, lambda function: jit(function, on_disk=False))
