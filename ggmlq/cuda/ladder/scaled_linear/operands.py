"""The host's side of r0 to r3: codes, scales and zero points as their kernels take them, and their limit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....arrays.scaled import ScaledArray
from ....codes import Code
from ....dispatch.problems import ScaledLinear
from ...driver.device import cupy
from ...intrinsics.language import float32, int32, types

MAX_GRID_ROWS = 65535  # rows of blocks of a grid


class Operands(NamedTuple):
    """Both operands of a product."""

    parts: list[Any]  # codes, scales and zero points of x, then of w
    shared: list[int]  # rows and columns of x that share a scale, then of w
    group: int  # columns within which no scale changes
    zeros: bool  # there are zero points


def operands(x: ScaledArray, w: ScaledArray) -> Operands:
    """The operands of x @ w.T."""
    a, b, parts = x.matrix(), w.matrix(), []
    zeros = a.zeros is not None or b.zeros is not None
    for m in (a, b):
        # Without zero points the kernel reads none, but its parameter wants an array: any of this type.
        points = m.scales.view(np.int32) if m.zeros is None else m.zeros.astype(np.int32, copy=False)
        if m.zeros is None and zeros:  # the other operand has some
            points = cupy().zeros(m.scales.shape, np.int32)
        parts += [m.codes, m.scales, points]
    shared = [a.over.r, a.over.c, b.over.r, b.over.c]
    return Operands(parts, shared, max(1, min(a.over.c, b.over.c)), zeros)


def types_of_operands(code_a: Code, code_b: Code) -> list[Any]:
    """The types of :class:`Operands`' parts. Rows of codes may be parts of larger matrices, or transposed."""
    return [
        strided(element)
        for code in (code_a, code_b)
        for element in (getattr(types, code.dtype.name), float32, int32)
    ]


def strided(element: Any) -> Any:
    """The type of a matrix of any strides."""
    return types.Array(element, 2, "A")


def too_many_rows(problem: ScaledLinear, side: int) -> str | None:
    """The reason why blocks of ``side`` rows do not serve a problem, or None."""
    most = side * MAX_GRID_ROWS
    return f"takes up to {most} rows of x" if problem.m > most else None
