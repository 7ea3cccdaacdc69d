"""Integers throughout in the tiles of r1: exact, and one conversion where there was one every 32 columns.

Changed: one line. The sum of 32 products is added to an int32, which becomes a float32 when its group of
scales ends, at the latest when K does. int32 holds every sum of K ≤ 131071 products of full int8.

Why it helps: nothing is rounded before the scales, so the order of additions does not matter, and every
rung from here on gives the same bits. It is cheaper too: a conversion takes four times an addition's time.

Limited by instructions, as before: each product is a multiplication of its own.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ...arrays.scaled import ScaledArray
from ...codes import Code
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..codes8.rows import BYTE_CODES, not_bytes, too_large_for_int32
from ..intrinsics.atoms import inlined
from ..intrinsics.language import int32
from ..machine.launch import Kernel, family
from .r0_naive import too_many_rows
from .r1_tiled import SIDE, run, tiled_kernel


@inlined
def keep_whole(dot: Any, part: Any, i: Any) -> None:
    """The sum of 32 products, added to the others in int32."""
    part[i] += dot[i]


@family(combined(BYTE_CODES, BYTE_CODES, (False, True)))
def kernel(code_a: Code, code_b: Code, zeros: bool) -> Kernel:
    return tiled_kernel("tiled_int32", int32, code_a, code_b, zeros, keep_whole)


def refuses(problem: ScaledLinear) -> str | None:
    return not_bytes(problem) or too_large_for_int32(problem) or too_many_rows(problem, SIDE)


@register(__name__, __doc__, arithmetic="codes", accumulate="int32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    run(kernel, x, w, out)
