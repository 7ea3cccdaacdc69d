"""Decode 8-bit floats to pairs of bfloat16, of which one instruction adds two products to each of 16 sums.

Changed: no BLAS, no copies of float32. Every number of 8 bits is one of bfloat16, of which a vector holds
twice as many. Sixteen rows of weights are laid side by side and decoded, in portions that the second cache
holds, where twelve rows of activations at a time meet two times sixteen of weights.

Why it helps: the dot product of bfloat16 makes twice the products of a fused multiplication of float32,
and adds them in float32 all the same. Decoding is two look-ups for 64 codes, and writes two bytes a code
for four.

Up to eight rows of activations meet rows of weights as these lie, decoded a vector at a time, with sums along
K: laying them side by side takes as long as six rows.

Limited by these dot products, one a clock; with few rows by decoding, and with one nearly by memory.
"""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..codes8 import float_multiply
from ..codes8.float_layout import STEP
from ..codes8.float_multiply import multiply


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "it multiplies 8-bit floats"
    if problem.varies and problem.group < STEP:
        return f"it fills groups of K up to {STEP} columns, and scales change every {problem.group}"
    return float_multiply.refused()


def alone(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """The product of ``launch`` with weights laid side by side for few rows, too: sums have one order."""
    multiply(ScaledLinear.of(x, w), x, w, out, along=0)


@register(
    __name__,
    __doc__,
    arithmetic="codes",
    accumulate="float32",
    refuses=refuses,
    repeats=True,
    invariant=alone,
)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    multiply(ScaledLinear.of(x, w), x, w, out)
