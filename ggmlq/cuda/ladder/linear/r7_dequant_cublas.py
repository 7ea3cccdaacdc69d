"""Decode to half, multiply with cuBLAS: what a library gives, and the bar for all others.

Changed: halves in place of float32, for weights and activations, so that cuBLAS has tensor cores for
them; it sums their products in float32. It serves every block format and does not care for blocks at
all.

Limited by the copy: each weight is written and read again as two bytes, which a large batch pays
for and a small one does not. The copy takes 256 MB (or 16 rows): larger matrices are decoded and
multiplied in slabs of rows. Halves end at 65504: larger activations become infinite.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver import device
from ...kernels.cublas import gemm
from ...kernels.quantize.decode import decoded
from ...layouts.floats import narrowed

SLAB = 256 << 20  # bytes of weights that are decoded at a time


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks; cuda:dequant multiplies plain floats"
    return device.lacks_cublas(problem.card, problem.captured)


# Who computes what: the library all products, one slab of rows of weights after the other, each into its
# columns of the result. The halves of a slab take the memory of the one before.
#
#     w [n, k]   +---------------+           out [m, n]   +-------+-------+----
#        slab 0  | first …       |  halves                |       |       |
#                +---------------+  --------->   x [m, k] | slab 0| slab 1| …
#        slab 1  |               |  · xᵀ                  |       |       |
#                +---------------+                        +-------+-------+----


@register(
    __name__, __doc__, arithmetic="f16", accumulate="f16", refuses=refuses,
    caution="halves end at 65504, larger activations become infinite",
)  # fmt: skip
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if not (x.size and out.size):
        out.fill(0)
        return
    rows, (n, k) = narrowed(x, "float16"), q.shape
    # A multiple of 16 rows, and one at least, however long they are.
    count = max(16, SLAB // (2 * k) // 16 * 16)
    for first in range(0, n, count):
        last = min(first + count, n)
        gemm(rows, decoded(q if last - first == n else q[first:last], "float16"), out, first, "float16")
