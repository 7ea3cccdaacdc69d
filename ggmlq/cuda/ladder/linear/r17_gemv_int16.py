"""One row: activations as integers of 16 bits, so that codes of weights are multiplied as bytes.

Changed from gemv, whose integer units are its limit with one row: they make floats of codes, two at a time.
Bytes take half as many of these instructions, and ``mma`` of bytes takes twice the columns. Activations
become two digits of a byte each, in columns of ``mma`` that are free (gemv/products.py). An activation is off
by at most 2**-14 of the largest of its 32, or 2**-127. With two rows an operand has columns for two units
alone: that is no faster than gemv.

Limited by memory, and by what each block does before its first stage and after its last.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ...driver.launch import Kernel, family
from ...kernels.cost.gemv import GemvSplit
from ...kernels.gemv.kernel import gemv_kernel
from ...kernels.gemv.launch import multiply_rows, refuses_bytes, refuses_rows
from ...kernels.gemv.stages import FOUR, TWO, GemvStage, kinds_of, spans
from ...layouts.codes import serves_bytes
from ...layouts.layout import PackedLayout, layouts


@family(
    lambda: (
        (layout, 1, span, small, fragment_rows)
        for layout in layouts()
        if serves_bytes(layout)
        for fragment_rows in (TWO, FOUR)
        for span in spans(layout, 1)
        for small in kinds_of(fragment_rows, 1)
    )
)
def kernel(layout: PackedLayout, columns: int, span: int, small: bool, fragment_rows: int) -> Kernel:
    """The kernel for one row of activations, the only number of ``columns``; of small blocks or lone ones."""
    return gemv_kernel("gemv_int16", GemvStage(layout, columns, span, small, fragment_rows), integers=True)


def refuses(problem: Linear) -> str | None:
    return refuses_bytes(problem.format) or refuses_rows(problem, 1)


@register(
    __name__, __doc__, arithmetic="int16x", accumulate="int32", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: GemvSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another split than the best by estimate."""
    multiply_rows(kernel, x, q, out, split, end)
