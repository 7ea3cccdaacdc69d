"""FP8 on GPUs before 8.0: decode both operands to float32, multiply with cuBLAS.

Changed: codes times scales become matrices of float32 (quantize_scaled/decode.py), and the library does the
rest.

Why it helps: such GPUs have no asynchronous copies, so no rung above takes floats of 8 bits there, and the
plain one decodes each code again for each output.

Limited by float32 without tensor cores, and by the decoded copies, which live during the call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver import device
from ...driver.device import cupy
from ...kernels.quantize_scaled.decode import dequantize

NEWER = (8, 0)  # GPUs that widen codes for their tensor cores


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "sums in float32, which is not exact for integers"
    if problem.accumulate not in (None, "float32"):
        return f"sums in float32, {problem.accumulate} was asked for"
    if problem.card is not None and problem.card.capability >= NEWER:
        return "is for GPUs before 8.0; later ones have cuda:widen"
    return device.lacks_cublas(problem.card, problem.captured)


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    # Who computes what: all of it the library, on two matrices that are decoded first:
    #
    #     codes [m, k], scales  →  float32 [m, k]
    #                                    ·           →  out [m, n]
    #     codes [n, k], scales  →  float32 [n, k]ᵀ
    #
    # The transpose is a view: cuBLAS reads rows as columns, nothing is moved.
    values = [dequantize(operand, np.dtype(np.float32)) for operand in (x, w)]
    cupy().matmul(values[0], values[1].T, out=out)
