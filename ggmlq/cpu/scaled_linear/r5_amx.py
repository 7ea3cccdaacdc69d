"""Multiply tiles of 8-bit integers on the matrix unit of Intel's CPUs.

Changed: one instruction adds 64 products to each of 256 sums, which stay in the unit. Panels are
those of cpu:tiles: four neighbours of 16 rows are a row of a tile.

Why it helps: 16384 multiply-adds in 16 clocks, sixteen times those of the integer dot product.

Limited by the tiles' way from the second cache with many rows of activations; with less than a tile of
these most of the unit's work is for nothing, so others take few rows.
"""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..amx import permission
from ..codes8.int_layout import cut_of
from . import r3_tiles

LEAST = 16  # rows of activations: a tile
STEP = 64  # columns of a tile


def refuses(problem: ScaledLinear) -> str | None:
    if (reason := r3_tiles.refuses(problem)) is not None:
        return reason
    if problem.m < LEAST:
        return f"a tile is {LEAST} rows of activations"
    if problem.varies or problem.k % STEP or not problem.k or cut_of(problem).chunks > 1:
        return f"it takes one scale for all of K, which is a multiple of {STEP} and no longer than int32 sums"
    return permission.refused()


@register(__name__, __doc__, arithmetic="codes", accumulate="int32", refuses=refuses, invariant=True)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    from ..codes8.int_amx_multiply import multiply  # llvmlite's names: only where there is such a unit

    multiply(ScaledLinear.of(x, w), x, w, out)
