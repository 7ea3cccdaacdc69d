"""Cases at edges where kernels had been wrong: counts of rows, ties, sizes of numbers, gaps along each axis.

A kernel is written for what a model has: one sequence, numbers near 1, fewer rows than a grid has threads,
windows of one width. Each case here leaves that in one respect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .opcases_models import BASE, CONTEXT, ROPES
from .sketch import Sketch, about, cases

MANY = ((20, 1024), (5000, 2))  # rows of which each block of a grid has its fill, rows longer than any block


@cases("NORM", "norm", 1e-5)
@cases("RMS_NORM", "rms_norm", 1e-5)
@cases("L2_NORM", "l2_norm", 1e-6)
@cases("SOFT_MAX", "soft_max")
@cases("SUM_ROWS", "sum_rows")
@cases("MEAN", "mean")
@cases("CUMSUM", "cumsum")
@cases("ARGSORT", "argsort", 1)
@cases("ARGMAX", "argmax")
@cases("SCALE", "scale", 0.7)
@cases("SILU", "silu")
@cases("SWIGLU", "swiglu")
def many_rows(s: Sketch, function: str, *values: Any) -> Iterator[str]:
    """As many rows as blocks hold, and long ones."""
    for ne in MANY:
        s.call(function, s.leaf(*ne), *values)
        yield about(ne)


@cases("ADD", "add")
@cases("MUL", "mul")
def many_broadcast(s: Sketch, function: str) -> Iterator[str]:
    """As many rows as blocks hold, and long ones, with one row of the second tensor."""
    for ne in MANY:
        s.call(function, s.leaf(*ne), s.leaf(ne[0]))
        yield about(ne, f"b=[{ne[0]},1,1,1]")


@cases("NORM", "norm", 1e-5)
@cases("RMS_NORM", "rms_norm", 1e-5)
@cases("L2_NORM", "l2_norm", 1e-4)
@cases("GROUP_NORM", "group_norm", 6, 1e-5)
def graded(s: Sketch, function: str, *values: float) -> Iterator[str]:
    """Rows of all sizes, in some of which epsilon counts most."""
    ne = (40, 1, 12) if function == "group_norm" else (40, 12)
    s.call(function, s.leaf(*ne, data="graded"), *values)
    yield about(ne, "rows of all sizes")


@cases("SOFT_MAX")
def spread(s: Sketch) -> Iterator[str]:
    """Scores so far apart that exp of them, less another number than the largest, is infinite."""
    for n in (20, 257, 1056):
        s.call("soft_max_ext", s.leaf(n, 5, 3, data="spread"), None, 1.0, 0.0)
        yield about((n, 5, 3), "scores far apart")


@cases("TOP_K")
def ties(s: Sketch) -> Iterator[str]:
    """Equal elements, of which each has its own place."""
    for n, k in ((17, 4), (64, 8), (100, 100), (257, 40)):
        s.call("top_k", s.leaf(n, 5, data="equal"), k)
        yield about((n, 5), f"k={k}", "equal elements")


@cases("STEP", "step")
@cases("HARDSIGMOID", "hardsigmoid")
@cases("LEAKY_RELU", "leaky_relu", 0.1, False)
def at_zero(s: Sketch, function: str, *values: Any) -> Iterator[str]:
    """Numbers at the corners of a function: zeros, and equal ones around them."""
    s.call(function, s.leaf(37, 5, data="equal"), *values)
    yield about((37, 5), "whole numbers")


@cases("ROPE")
@cases("ROPE_BACK", "_back")
def sequences(s: Sketch, back: str = "") -> Iterator[str]:
    """Several sequences that lie apart, rotated in part."""
    for name in ("norm", "neox"):
        for look in ("apart", "permuted"):
            how = (64, ROPES[name][0], CONTEXT, BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
            x = getattr(s, look)(80, 3, 7, 2)
            s.call(f"rope_ext{back}", x, s.leaf(7, type="i32", data="positions:3000"), None, *how)
            yield f"{name}, f32, 64 of 80, 2 sequences, {look}"


@cases("CONT")
def parts_of_planes(s: Sketch) -> Iterator[str]:
    """Planes that lie apart, turned."""
    for order in ((1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)):
        for kind in ("f32", "f16"):
            s.call("cont", s.call("permute", s.apart(17, 5, 3, 2, type=kind), *order))
            yield f"ne=[17,5,3,2], {kind}, rows apart, axes to {list(order)}"


@cases("IM2COL_3D", "im2col_3d")
@cases("CONV_2D", "conv_2d_direct")
@cases("POOL_2D", "pool_2d")
def images_apart(s: Sketch, function: str) -> Iterator[str]:
    """Images that lie apart, windows and steps of two sizes."""
    if function == "im2col_3d":
        kernel = s.leaf(3, 2, 4, 8)
        s.call(function, kernel, s.apart(9, 8, 7, 6), 2, 1, 2, 3, 0, 1, 2, 2, 1, 1, 0)
    elif function == "pool_2d":
        s.call(function, s.apart(13, 9, 3, 2), 0, 3, 2, 2, 1, 1.0, 0.0)
    else:
        s.call(function, s.leaf(3, 2, 4, 5), s.apart(17, 9, 4, 2), 1, 2, 0, 1, 2, 1)
    yield "f32, rows apart, windows of two sizes"
