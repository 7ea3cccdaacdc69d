"""W4A8: integer products of codes, and the code's zero taken off through the block's sum.

Changed: activations are quantized first, to q8_1 blocks of 32 codes with a scale d and a sum
s = half(Σx). A block costs one float multiplication: ``d4 * (d8 * Σ q4·q8 - 8 * s)`` for q4_0, whose
stored codes are 8 too large. That is llama.cpp's formula on CUDA up to 8 rows, and that of the
experiment with which this ladder began. Here s is the sum of the floats, not of their codes, and that
costs accuracy (docs/arithmetic.md).

Limited as before: each output decodes its weights again, byte by byte, and asks memory for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BLOCK_FORMATS, FORMATS, BlockFormat
from ....formats.q8_1 import DTYPE, S
from ...driver.device import cupy
from ...driver.launch import Kernel, array, family
from ...intrinsics.atoms import atoms, half
from ...intrinsics.language import cuda, float32, int32, uint8
from ...kernels.quantize.encoders import q8_1_kernel

SIDE = 16  # of a block of threads
RUN = 32  # codes that share a scale, of weights as of activations
ENCODERS, ENCODER_THREADS = 4, 256  # threads that quantize a block of q8_1, and threads of their block
Q8_1 = FORMATS["q8_1"]
SIMPLE = tuple(
    fmt
    for fmt in BLOCK_FORMATS
    if fmt.block_size == fmt.group == RUN and not fmt.has_offset and fmt is not Q8_1
)


# Who computes what: as in the rung below a thread has one output, and walks along two rows. Both are blocks
# of 32 codes now. A thread makes one integer sum for each pair of blocks, and scales it:
#
#     x[m]   d8 s [ q8 q8 q8 … q8 ]  d8 s [ … ]  …          q8_1: 36 bytes
#                   ·  ·  ·    ·
#     w[n]   d4   [ q4 q4 q4 … q4 ]  d4   [ … ]  …          q4_0: 18 bytes
#                   32 products
#                        ↓
#                  dot, an int32      total += d4 * (d8 * dot - 8 * s)


@family((fmt,) for fmt in SIMPLE)
def kernel(fmt: BlockFormat) -> Kernel:
    """The kernel: a thread an output, blocks of q8_1 against blocks of the format."""
    assert isinstance(Q8_1, BlockFormat)
    (code, scale, _), (code8, scale8, _) = atoms(fmt), atoms(Q8_1)
    zero, sum_at = fmt.zero, S

    def naive(
        x: Any,  # uint8 [m, blocks of a row, 36]: q8_1
        w: Any,  # uint8 [n, blocks of a row, bytes of a block]
        y: Any,  # float32 [m, n]
    ) -> None:
        n = cuda.blockIdx.x * SIDE + cuda.threadIdx.x
        m = cuda.blockIdx.y * SIDE + cuda.threadIdx.y
        if m < y.shape[0] and n < y.shape[1]:
            total = float32(0)
            for b in range(w.shape[1]):
                block, block8 = w[n, b], x[m, b]
                dot = int32(0)  # of 32 products of bytes: far from overflow
                # With the zero added a code is what the file stores, 0 … 15 for q4_0. What that adds to the
                # sum of products is taken off below, once for 32 of them.
                for i in range(RUN):
                    dot += int32((code(block, i) + zero) * code8(block8, i))
                part = scale8(block8, 0) * float32(dot)
                if zero:  # not always: the sum of large floats may be infinite, and 0 times that no number
                    part -= float32(zero) * half(block8, sum_at)
                total += scale(block, 0) * part
            y[m, n] = total

    parameters = (array(uint8, 3), array(uint8, 3), array(float32, 2))
    return Kernel(f"naive {fmt.name}", naive, *parameters, threads=SIDE * SIDE)


def refuses(problem: Linear) -> str | None:
    if problem.format not in SIMPLE:
        return "takes blocks of 32 weights with one scale and no offset"
    if problem.m > SIDE * 65535:  # a grid has 65535 rows of blocks, at most
        return f"takes up to {SIDE * 65535} rows of activations"
    return None


@register(
    __name__, __doc__, arithmetic="ggml-mmvq", accumulate="int32", refuses=refuses,
    caution="sums of the floats in place of their codes cost accuracy",
)  # fmt: skip
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, (n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    cp, m = cupy(), len(x)
    floats = cp.ascontiguousarray(x, np.float32)
    if floats.data.ptr % 16:  # the encoder loads four floats at a time
        floats = floats.copy()
    x8, unfit = cp.empty((m, k // RUN, DTYPE.itemsize), np.uint8), cp.empty(1, np.uint32)
    count = m * (k // RUN)
    grid = (-(-count * ENCODERS // ENCODER_THREADS),)
    # ``unfit`` would tell quantize of infinite values and NaN; a product goes on with them.
    q8_1_kernel("ggml-mmvq")(grid, (ENCODER_THREADS,), floats, x8, unfit, count)
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    kernel(fmt)((-(-n // SIDE), -(-m // SIDE)), (SIDE, SIDE), x8, blocks, out)
