"""Launching over arrays of any height, and saying where small arrays lie."""

from __future__ import annotations

from typing import Any

from .launch import Kernel

LEVELS = 65535  # blocks of a grid in its second direction
LONG = (1 << 64) - 1


def by_levels(kernel: Kernel, across: int, levels: int, *arguments: Any) -> None:
    """Run a kernel over a grid of any height; its last parameter is where it begins."""
    for first in range(0, levels, LEVELS):
        grid = across, min(LEVELS, levels - first)
        kernel(grid, (kernel.threads,), *arguments, first)


def address_and_strides(array: Any) -> tuple[Any, int, int]:
    """Where a 2-D array is: address and strides; nowhere for None."""
    return (0, 0, 0) if array is None else (array.data.ptr, *(stride & LONG for stride in array.strides))
