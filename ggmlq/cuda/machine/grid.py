"""Helpers of launches: grids over any number of rows, and a 2-D array as its address and strides."""

from __future__ import annotations

from typing import Any

from .launch import Kernel

LEVELS = 65535  # blocks of a grid in its second direction, at most
LONG = (1 << 64) - 1


def by_levels(kernel: Kernel, across: int, levels: int, *arguments: Any) -> None:
    """Launch a kernel over ``levels`` levels of blocks, in several launches if need be.

    The kernel's last parameter is the first level of a launch.
    """
    for first in range(0, levels, LEVELS):
        grid = across, min(LEVELS, levels - first)
        kernel(grid, (kernel.threads,), *arguments, first)


def address_and_strides(array: Any) -> tuple[Any, int, int]:
    """The address and the strides of a 2-D array; zeros for None."""
    return (0, 0, 0) if array is None else (array.data.ptr, *(stride & LONG for stride in array.strides))
