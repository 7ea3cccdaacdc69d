"""A product by cuBLAS of float16 or bfloat16, summed in float32, and the numbers that its calls take.

``gemmEx`` has numbers for whether an operand is transposed, for its type, for the type of sums, and for the
algorithm; with DEFAULT cuBLAS chooses that itself. They are those of its header.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..driver import device

TRANSPOSED, AS_IS = 1, 0  # cublasOperation_t
R_32F, COMPUTE_32F, DEFAULT = 0, 68, -1  # cudaDataType_t, cublasComputeType_t, the algorithm
INPUT = {"float16": 2, "bfloat16": 14}  # cudaDataType_t


def gemm(x: Any, w: Any, out: Any, first: int, kind: str) -> None:
    """``out[:, first:] = x @ w.T``, for as many columns as w has rows; ``kind``: of the floats of x and w."""
    (m, k), n = x.shape, len(w)
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)  # out = one · product + none · out
    # cuBLAS counts columns first, so to it our w [n, k] is [k, n], x is [k, m] and out [n, m]. It is asked
    # for outᵀ = w · xᵀ, in its terms: (w as it sees it, transposed) · (x as it sees it). Each k is the
    # distance between rows; that of out is its whole width, so a slab writes between the others.
    device.cublas().gemmEx(
        device.cupy().cuda.device.get_cublas_handle(), TRANSPOSED, AS_IS, n, m, k,
        one.ctypes.data, w.data.ptr, INPUT[kind], k, x.data.ptr, INPUT[kind], k,
        none.ctypes.data, out.data.ptr + 4 * first, R_32F, out.shape[1], COMPUTE_32F, DEFAULT,
    )  # fmt: skip
