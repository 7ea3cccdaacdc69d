"""Multiply tiles of bfloat16 on the matrix unit of Intel's CPUs.

Changed: panels are decoded to bfloat16, scales and offsets included, a few kilobytes at a time, and
activations are rounded to it. One instruction multiplies 16 rows of 32 activations with 16 of weights.

Why it helps: 8192 multiply-adds in 16 clocks, eight times those of the integer dot product, and no scale
to multiply sums with: codes of 8 bits would need one for each run, which costs more than the products.
Rounding to bfloat16 loses less than codes of 8 bits with a scale for 32.

Limited by decoding with few rows of activations; with many by sums that go through the second cache and by
the results' way to memory.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ..amx import permission
from ..panels.layout import layout_of


def refuses(problem: Linear) -> str | None:
    if layout_of(problem.format) is None:
        return f"{problem.format.name} has no codes that can be kept one by one: its blocks are read"
    return permission.refused()


@register(
    __name__, __doc__, arithmetic="bf16", accumulate="f32", refuses=refuses, narrow=True, invariant=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    from ..amx.multiply import multiply  # llvmlite's names: only where there is such a unit

    multiply(x, q, out)
