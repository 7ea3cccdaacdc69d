"""Keep the weights in panels of 16 rows and the integer sums of a whole group of K in registers.

Changed: 16 rows of weights lie four codes by four codes beside each other, once, so that one
instruction makes 16 sums longer by four products. A sum is converted where the scales change, and not before:
after 128 products, or after all of K. Zero points, and what makes codes unsigned where an instruction wants
that, are taken off with the sum of the other operand.

Why it helps: the inner loop is loads and dot products; several rows of activations use each vector of
weights. Sums of more products than int32 holds are cut into chunks that are added in int64.

Limited by the dot products with many rows of activations, by the memory's bandwidth with few.
"""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..codes8.int_layout import BYTES
from ..codes8.int_multiply import multiply


def refuses(problem: ScaledLinear) -> str | None:
    for operand in (problem.x, problem.w):
        if operand.code not in BYTES:
            return f"dot products are of integers of 8 bits, {operand.code} is not one"
    if problem.accumulate in ("float32", "fp32_chunks"):
        return "it sums in int32 and int64"
    return None


@register(
    __name__,
    __doc__,
    arithmetic="codes",
    accumulate="int32, int64",
    refuses=refuses,
    repeats=True,
    invariant=True,
)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    multiply(ScaledLinear.of(x, w), x, w, out)
