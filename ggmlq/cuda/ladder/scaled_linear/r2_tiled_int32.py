"""Integers throughout in the tiles of r1: exact, and one conversion where there was one every 32 columns.

Changed: ``part`` is an int32; all else is the kernel of r1. The sum of 32 products is added to an int32,
which becomes a float32 when its group of scales ends, at the latest when K does. int32 holds every sum of
K ≤ 131071 products of full int8.

Why it helps: nothing is rounded before the scales, so the order of additions does not matter, and every
rung from here on gives the same bits. It is cheaper too: a conversion takes four times an addition's time.

Limited by instructions, as before: each product is a multiplication of its own.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....codes import Code
from ....dispatch.ladder import register
from ....dispatch.problems import INT32, ScaledLinear
from ...driver.launch import Kernel, family
from ...intrinsics.language import int32
from .operands import too_many_rows
from .r1_tiled import BYTE_CODES, SIDE, product, run


@family(combined(BYTE_CODES, BYTE_CODES, (False, True)))
def kernel(code_a: Code, code_b: Code, zeros: bool) -> Kernel:
    return product("tiled_int32", int32, code_a, code_b, zeros)


def refuses(problem: ScaledLinear) -> str | None:
    for operand in (problem.x, problem.w):
        if operand.code not in [code.name for code in BYTE_CODES]:
            return f"multiplies integers of 8 bits, {operand.code} is none"
    if problem.accumulate not in (None, "int32"):
        return "sums in int32"
    if problem.largest_sum > INT32:
        return f"sums in int32, and {problem.group} products may reach {problem.largest_sum:.3g}"
    return too_many_rows(problem, SIDE)


@register(__name__, __doc__, arithmetic="codes", accumulate="int32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    run(kernel, x, w, out)
