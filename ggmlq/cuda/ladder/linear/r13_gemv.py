"""A few rows: weights straight from memory in the file's bits, on tensor cores that have time to spare.

Changed: until here the activations were the 16 rows of ``mma`` and the weights its 8 columns, so one row of
activations wasted fifteen sixteenths of it. Now 16 rows of weights are multiplied by 8 of activations.
Weights are packed (layouts/pack.py): a fragment of 16 rows and 64 columns is one piece of memory, in the bits
of the file, with just the codes for each lane of a warp that the lane puts into ``mma``.

And no warp waits for a fragment. With few rows all that counts is to read the weights once, as fast as
memory gives them. Each of the 4 to 16 warps of a block keeps fragments in flight into shared memory
(gemv/kernel.py), without waiting for any other warp; the first ones while the kernel before this one still
runs (intrinsics/hopper.py). A block makes 32 or 64 rows of outputs; its warps share the columns and
add up at the end, in a fixed order. And codes of some types stay raised, which saves instructions
(layouts/operand.py).

Activations stay as they are and become bfloat16 while they are read: so one kernel does all. (Floats of 32
bits are rounded by a kernel before if they are 9 rows and more; 5 to 8 rows have a kernel for them and one
for 16 bits.) The codes
are exact in bfloat16, and scales multiply only sums: nothing overflows. (An activation that is infinite may
make NaN, for raised codes are up to 128 too high and that is taken off.)

With up to four rows the columns of ``mma`` that are free serve other runs (gemv/products.py). An estimate
(cost/gemv.py) decides how many fragment rows a block has, and how blocks split them.

Limited by instructions as much as by memory: unpacking codes and making scales takes half of all issue
slots. A block of 64 rows of outputs loads and converts activations half as often.
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
from ...kernels.gemv.launch import multiply_rows, refuses_rows
from ...kernels.gemv.stages import COLUMNS, FOUR, TWO, GemvStage, columns_of, kinds_of, spans, widths_of
from ...layouts.layout import PackedLayout, layouts


@family(
    lambda: (
        (layout, columns, span, small, fragment_rows, *(True,) * narrow)
        for layout in layouts()
        for fragment_rows in (TWO, FOUR)
        for columns in columns_of(fragment_rows)
        for span in spans(layout, columns)
        for small in kinds_of(fragment_rows, columns)
        for narrow in widths_of(columns)
    )
)
def kernel(
    layout: PackedLayout, columns: int, span: int, small: bool, fragment_rows: int, narrow: bool = False
) -> Kernel:
    """The kernel for up to ``columns`` rows of activations, of small blocks or of lone ones."""
    return gemv_kernel("gemv", GemvStage(layout, columns, span, small, fragment_rows, narrow))


def refuses(problem: Linear) -> str | None:
    return refuses_rows(problem, COLUMNS[-1])


@register(
    __name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: GemvSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another split than the best by estimate."""
    multiply_rows(kernel, x, q, out, split, end)
