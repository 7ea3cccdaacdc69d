"""The plainest kernel: one thread an output, every weight decoded to float32 where it is used.

Changed: nothing yet. A thread walks along a row of weights and a row of activations, decodes each
weight to float32 and multiplies. The format enters through its atoms, so it serves all of them.

Limited by instructions: a weight is decoded again for every row of activations, a dozen
instructions for one multiplication.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BLOCK_FORMATS, BlockFormat
from ....formats.atoms import rebuild
from ...driver.device import cupy
from ...driver.launch import Kernel, array, family
from ...intrinsics import ptx
from ...intrinsics.atoms import Table
from ...intrinsics.language import cuda, float32, uint8, uint32

SIDE = 16  # of a block of threads

# A device function, copied into each kernel that calls it: nothing is called at run time.
inlined: Any = cuda.jit(device=True, inline="always")


@inlined
def half_value(bits: Any) -> Any:
    """The float32 of a half's bits, by the one instruction that does it."""
    return ptx.half_value(uint32(bits))


# Who computes what: y [m, n] is cut into squares of 16 × 16, one for each block of threads, and each
# thread has one output. It reads a row of x and a row of w from their first column to their last.
#
#                n = 16 blockIdx.x + threadIdx.x →
#              +--------------------+
#     m =      |  .   .   .   .   . |       x[m]   x x x x x x x x | x x x x x x x x | …
#     16       |  .   .   .   .   . |              · · · · · · · ·   · · · · · · · ·
#     blockIdx |  .   .   y   .   . |       w[n]   codes, scale    | codes, scale    | …
#     .y +     |  .   .   .   .   . |              (and offset)
#     threadIdx|  .   .   .   .   . |              block 0           block 1
#     .y  ↓    +--------------------+
#
# A warp is two rows of such a square. Its 16 threads of one row read the same number of x at once, which
# memory gives to all of them. But each has a row of weights of its own, so one load of a byte of w touches
# 16 places that lie whole rows apart.


@family((fmt,) for fmt in BLOCK_FORMATS)
def kernel(fmt: BlockFormat) -> Kernel:
    # The format's three functions from its own file, compiled for the GPU. Their arrays of constants
    # become tables in global memory: constant memory would serve the threads of a warp one by one.
    code, scale, offset = rebuild(fmt, inlined, {"half_value": half_value}, Table)
    size, group = fmt.block_size, fmt.group

    def naive_f32(
        x: Any,  # float32 [m, k]
        w: Any,  # uint8 [n, blocks of a row, bytes of a block]
        y: Any,  # float32 [m, n]
    ) -> None:
        n = cuda.blockIdx.x * SIDE + cuda.threadIdx.x
        m = cuda.blockIdx.y * SIDE + cuda.threadIdx.y
        # Squares at the edge stick out of y; whoever is outside must neither read nor write.
        if m < y.shape[0] and n < y.shape[1]:
            total = float32(0)
            for b in range(w.shape[1]):
                block = w[n, b]
                # A group shares a scale and an offset: they are decoded once for it, codes one by one.
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
    if problem.m > SIDE * 65535:  # a grid has 65535 rows of blocks, at most
        return f"takes up to {SIDE * 65535} rows of activations"
    return None


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, (n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    floats = cupy().ascontiguousarray(x, np.float32)
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    # One block of threads for each square of outputs, the last ones of a row or column cut off by y.
    kernel(fmt)((-(-n // SIDE), -(-len(x) // SIDE)), (SIDE, SIDE), floats, blocks, out)
