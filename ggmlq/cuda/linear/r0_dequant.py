"""Decode all weights to float32, then multiply with cuBLAS.

Changed: nothing yet, this is the ground, and the only rung for tensors of plain floats.

Limited by float32 without tensor cores, and by the decoded copy, which lives during the call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...array import QuantArray
from ...ladder import register
from ...problems import Linear
from ..dequantize import dequantize
from ..machine import device
from ..machine.device import cupy


def refuses(problem: Linear) -> str | None:
    return device.lacks_cublas(problem.card)


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    cp = cupy()
    cp.matmul(x.astype(np.float32, copy=False), dequantize(q, np.dtype(np.float32)).T, out=out)
