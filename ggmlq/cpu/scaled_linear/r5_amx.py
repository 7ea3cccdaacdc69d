"""Multiply tiles of 8-bit codes on the matrix unit of Intel's CPUs.

Changed: one instruction adds 64 products of integers to each of 256 sums, which stay in the unit. Panels
are those of cpu:tiles: four neighbours of 16 rows are a row of a tile. 8-bit floats become bfloat16, which
holds each of them, and the same instruction for these adds 32 products.

Why it helps: 16384 multiply-adds in 16 clocks, sixteen times those of the integer dot product; 8192 of
floats.

Limited by the tiles' way from the second cache with many rows of activations, and by scales that change
along K: sums then leave the unit. With less than a tile of activations most of the unit's work is for
nothing, so others take few rows.
"""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..amx import permission
from ..codes8 import float_layout, float_multiply
from ..codes8.int_layout import cut_of
from . import r3_tiles

LEAST = 16  # rows of activations: a tile
STEP, WIDE = 64, 32  # columns of a tile of integers, and of floats


def refuses(problem: ScaledLinear) -> str | None:
    if problem.m < LEAST:
        return f"a tile is {LEAST} rows of activations"
    return _refuses_integers(problem) if problem.integer else _refuses_floats(problem)


def _refuses_integers(problem: ScaledLinear) -> str | None:
    if (reason := r3_tiles.refuses(problem)) is not None:
        return reason
    if problem.varies or problem.k % STEP or not problem.k or cut_of(problem).chunks > 1:
        return f"it takes one scale for all of K, which is a multiple of {STEP} and no longer than int32 sums"
    return permission.refused()


def _refuses_floats(problem: ScaledLinear) -> str | None:
    if not problem.k or float_layout.cut_of(problem).width % WIDE:
        return f"groups of K, filled up to {float_layout.STEP} columns, are not whole tiles of {WIDE} here"
    return float_multiply.refused() or permission.refused()


@register(__name__, __doc__, arithmetic="codes", accumulate="int32, float32", refuses=refuses, invariant=True)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    problem = ScaledLinear.of(x, w)
    from ..codes8 import amx_multiply  # llvmlite's names: only where there is such a unit

    multiply = amx_multiply.integers if problem.integer else amx_multiply.floats
    multiply(problem, x, w, out)
