"""Multiply squares of codes by the matrix instruction of arm64's CPUs (i8mm).

Changed: two rows of weights meet two of activations, eight codes of each, in one instruction, where a dot
product multiplies four codes of four rows.

Why it helps: twice the products of an instruction, and four rows of activations for which weights are
unpacked once. Panels are those of cpu:panels, zipped in registers, and results have the same bits.

Limited by the zips, half as many as squares with four rows of activations; a layout of its own would save
them. With one row of activations half of each square would be for nothing.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ..machine.features import compiled_for
from ..machine.kernels import kernel
from ..machine.target import DOTPROD, target
from ..panels.layout import layout_of
from ..panels.multiply import multiply
from ..panels.prepare import panels
from . import r6_panels

FEATURE, LEAST, MOST = "i8mm", 2, 4  # rows of activations at least, and at once


def refuses(problem: Linear) -> str | None:
    if (reason := r6_panels.refuses(problem)) is not None:
        return reason
    if target() is not DOTPROD or FEATURE not in compiled_for():
        return f"this CPU, or what Numba compiles for, has no {FEATURE} of arm64"
    return None if problem.m >= LEAST else f"a square is {LEAST} rows of activations"


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True,
    caution="its speed was measured on no CPU",
)  # fmt: skip
def launch(x: Any, q: QuantArray, out: Any) -> None:
    layout = layout_of(q.format)
    assert layout is not None
    weights = q.prepared(panels)
    multiply(
        x, weights, out, layout, lambda rows: kernel("panels.squares.direct", layout, target()), most=MOST
    )
