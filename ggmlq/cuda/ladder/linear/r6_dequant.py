"""Decode all weights to float32, then multiply with cuBLAS: blocks forgotten, nothing rounded.

Changed: nothing is multiplied here. The weights become a matrix of float32 (quantize/decode.py) and the
library does the rest, in float32 as well: what anyone gets in two lines. Also the rung of tensors of
plain floats, which need no decoding.

Limited by float32 without tensor cores: integers in registers, the rung below, are faster. And by the
decoded copy, which lives during the call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ...driver import device
from ...driver.device import cupy
from ...kernels.quantize.decode import dequantize


def refuses(problem: Linear) -> str | None:
    return device.lacks_cublas(problem.card, problem.captured)


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    # Who computes what: all of it the library. Weights are decoded into a whole matrix, row after row:
    #
    #     blocks [n, k / size]  →  float32 [n, k]  →  x [m, k] · its transpose [k, n]  →  out [m, n]
    #      4.5 bits a weight         32 bits, written once and read once
    #
    # The transpose is a view: cuBLAS reads rows as columns, nothing is moved.
    cp = cupy()
    cp.matmul(x.astype(np.float32, copy=False), dequantize(q, np.dtype(np.float32)).T, out=out)
