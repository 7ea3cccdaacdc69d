"""bfloat16 and cuBLAS: with many rows the library on a decoded copy wins, with the range of float32.

Changed: the library again, with bfloat16 in place of halves. It keeps 8 bits of a number in place of 11,
still more than the 7 of an int8 code, and nothing overflows. cuBLAS uses Hopper's own tensor
instructions (wgmma), which are faster than ``mma.sync``, and scales nothing.

Where other kernels have packed the weights, it decodes the packed weights, which is faster and does
without the file's bytes. Limited by decoding, which takes as long for one row as for a thousand.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.card import older_than
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ....formats.scalars import ScalarFormat
from ...driver import device
from ...intrinsics.floats import DTYPES, LEAST
from ...kernels.cublas import gemm
from ...kernels.quantize.decode import decoded
from ...layouts.floats import narrowed
from ...layouts.pack import pack_weights
from ...layouts.to_bf16 import decode_packed

KIND = "bfloat16"  # of both operands
SLAB = 256 << 20  # bytes of weights that are decoded at a time


def refuses(problem: Linear) -> str | None:
    fmt = problem.format
    if isinstance(fmt, ScalarFormat) and fmt.bfloat:
        if problem.k % 8:
            return "takes rows of a multiple of 8 columns"
    elif not isinstance(fmt, BlockFormat):
        return "is written for blocks; cuda:dequant multiplies plain floats"
    lacking = device.lacks_cublas(problem.card, problem.captured)
    return lacking or older_than(problem.card, LEAST[KIND])


@register(__name__, __doc__, arithmetic="bf16", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if not (x.size and out.size):
        out.fill(0)
        return
    rows, (n, k) = narrowed(x, KIND), q.shape
    count = max(16, SLAB // (2 * k) // 16 * 16) if isinstance(q.format, BlockFormat) else n
    for first in range(0, n, count):
        gemm(rows, weights(q, first, min(count, n - first)), out, first, KIND)


def weights(q: QuantArray, first: int, rows: int) -> Any:
    """Rows of q from ``first`` on as bfloat16, out of packed weights if the array has them."""
    # Two ways to the same rows, a slab at a time:
    #
    #     packed weights, where a kernel made them before  →  fragments, read in order   →  bfloat16 [rows, k]
    #     the file's blocks, else                          →  decoded, row after row     →  bfloat16 [rows, k]
    #
    # ``prepared_copy`` makes nothing: weights are not packed for this rung alone.
    w = q.prepared_copy(pack_weights)
    if w is None:
        return decoded(q if rows == len(q) else q[first : first + rows], KIND)
    values = device.cupy().empty((rows, q.shape[1]), DTYPES[KIND])
    decode_packed(w, first, values)
    return values
