"""Decode to half, multiply with cuBLAS: what a library gives, and the bar for all others.

Changed: nothing is multiplied here. The weights become a matrix of halves, the activations too, and
cuBLAS sums the products of halves in float32 on the tensor cores. It serves every block format and
does not care for blocks at all.

Limited by the copy: each weight is written and read again as two bytes, which a large batch pays
for and a small one does not. Halves end at 65504: larger activations become infinite.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ...array import QuantArray
from ...formats import BlockFormat
from ...ladder import Problem, register
from ..dequantize import dequantize
from ..device import cupy

HALF = np.dtype(np.float16)
TRANSPOSED, AS_IS = 1, 0  # cublasOperation_t
R_16F, R_32F, COMPUTE_32F, DEFAULT = 2, 0, 68, -1  # cudaDataType_t, cublasComputeType_t, the algorithm


def refuses(problem: Problem) -> str | None:
    if not isinstance(problem.format, BlockFormat) and problem.format.dtype != HALF:
        return "would squeeze floats of a larger range into halves"
    return None


@register(__name__, __doc__, arithmetic="f16", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if x.size and q.nbytes:
        multiply(cupy().ascontiguousarray(x, HALF), dequantize(q, HALF), out)
    else:
        out.fill(0)


def multiply(x: Any, w: Any, out: Any) -> None:
    """``out = x @ w.T``: halves in, float32 sums. cuBLAS counts columns first, so it sees all transposed."""
    cublas: Any = import_module("cupy_backends.cuda.libs.cublas")

    (m, k), n = x.shape, len(w)
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    cublas.gemmEx(
        cupy().cuda.device.get_cublas_handle(), TRANSPOSED, AS_IS, n, m, k,
        one.ctypes.data, w.data.ptr, R_16F, k, x.data.ptr, R_16F, k,
        none.ctypes.data, out.data.ptr, R_32F, n, COMPUTE_32F, DEFAULT,
    )  # fmt: skip
