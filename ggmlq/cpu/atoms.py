"""A format's atoms, compiled for the CPU from the text in its file."""

from __future__ import annotations

from functools import cache

import numba

from ..formats.atoms import Atoms, rebuild
from ..formats.format import BlockFormat


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """``code``, ``scale`` and ``offset`` of a format as functions that other kernels may call."""
    return rebuild(fmt, numba.njit)
