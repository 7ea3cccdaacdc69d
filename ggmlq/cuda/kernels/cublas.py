"""Products of decoded weights by cuBLAS, a slab of rows at a time, for cuda:dequant_bf16.

cuda:dequant_cublas has the same by itself, of halves. mma/transposed.py takes cuBLAS's numbers from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..driver import device
from ..driver.device import cupy
from ..layouts.floats import narrowed
from .quantize.decode import decoded

TRANSPOSED, AS_IS = 1, 0  # cublasOperation_t
R_32F, COMPUTE_32F, DEFAULT = 0, 68, -1  # cudaDataType_t, cublasComputeType_t, the algorithm
INPUT = {"float16": 2, "bfloat16": 14}  # cudaDataType_t
SLAB = 256 << 20  # bytes of weights that are decoded at a time
Decode = Callable[[QuantArray, int, int], Any]  # (weights, first row, rows) -> those rows as floats


def refuses(problem: Linear) -> str | None:
    """The reason why a decoded product does not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks; cuda:dequant multiplies plain floats"
    return device.lacks_cublas(problem.card, problem.captured)


def multiply_by_cublas(x: Any, q: QuantArray, out: Any, kind: str, decode: Decode) -> None:
    """``out = x @ q.T`` with both operands as halves or bfloat16; ``decode`` makes rows of weights."""
    if not (x.size and out.size):
        out.fill(0)
        return
    rows, (n, k) = narrowed(x, kind), q.shape
    count = max(16, SLAB // (2 * k) // 16 * 16) if isinstance(q.format, BlockFormat) else n
    for first in range(0, n, count):
        gemm(rows, decode(q, first, min(count, n - first)), out, first, kind)


def decoded_rows(kind: str, q: QuantArray, first: int, rows: int) -> Any:
    """Rows of q from ``first`` on, as values of a kind."""
    return decoded(q if rows == len(q) else q[first : first + rows], kind)


def gemm(x: Any, w: Any, out: Any, first: int, kind: str) -> None:
    """``out[:, first:] = x @ w.T`` for as many columns as w has rows.

    cuBLAS counts columns first and so sees all of it transposed.
    """
    cublas = device.cublas()
    (m, k), n = x.shape, len(w)
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    cublas.gemmEx(
        cupy().cuda.device.get_cublas_handle(), TRANSPOSED, AS_IS, n, m, k,
        one.ctypes.data, w.data.ptr, INPUT[kind], k, x.data.ptr, INPUT[kind], k,
        none.ctypes.data, out.data.ptr + 4 * first, R_32F, out.shape[1], COMPUTE_32F, DEFAULT,
    )  # fmt: skip
