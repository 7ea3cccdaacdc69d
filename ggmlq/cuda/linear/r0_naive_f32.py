"""The plainest kernel: one thread an output, every weight decoded to float32 where it is used.

Changed: nothing yet. A thread walks along a row of weights and a row of activations, decodes each
weight to float32 and multiplies. The format enters through its atoms, so it serves all of them.

Limited by instructions: a weight is decoded again for every row of activations, a dozen
instructions for one multiplication.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.floats import aligned_floats
from ..intrinsics.atoms import atoms
from ..intrinsics.language import cuda, float32, uint8
from ..machine.launch import Kernel, array, family

SIDE = 16  # of a block of threads


@family((fmt,) for fmt in BLOCK_FORMATS)
def kernel(fmt: BlockFormat) -> Kernel:
    code, scale, offset = atoms(fmt)
    size, group = fmt.block_size, fmt.group

    def naive_f32(
        x: Any,  # float32 [m, k]
        w: Any,  # uint8 [n, blocks of a row, bytes of a block]
        y: Any,  # float32 [m, n]
    ) -> None:
        n = cuda.blockIdx.x * SIDE + cuda.threadIdx.x
        m = cuda.blockIdx.y * SIDE + cuda.threadIdx.y
        if m < y.shape[0] and n < y.shape[1]:
            total = float32(0)
            for b in range(w.shape[1]):
                block = w[n, b]
                for g in range(size // group):
                    s, o = scale(block, g), offset(block, g)
                    for i in range(g * group, (g + 1) * group):
                        total += x[m, b * size + i] * (s * float32(code(block, i)) - o)
            y[m, n] = total

    parameters = (array(float32, 2), array(uint8, 3), array(float32, 2))
    return Kernel(f"naive_f32 {fmt.name}", naive_f32, *parameters, threads=SIDE * SIDE)


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > SIDE * 65535:
        return f"takes up to {SIDE * 65535} rows of activations"
    return None


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, (n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    kernel(fmt)((-(-n // SIDE), -(-len(x) // SIDE)), (SIDE, SIDE), aligned_floats(x), blocks, out)
