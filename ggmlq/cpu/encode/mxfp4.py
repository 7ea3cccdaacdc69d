"""The encoder of mxfp4: an exponent by the logarithm, then 32 nearest levels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...formats.mxfp4 import DTYPE, POWER, QS, E
from ..lanes import load
from ..machine.jit import inner, jit
from ._fp4 import nearest_fp4
from ._simple import encoder, largest, put_nibbles

SIZE = DTYPE.itemsize


@inner
def exponent(size: Any) -> Any:
    """The byte e for a largest magnitude; why by a double's logarithm, says the format's ``pack``."""
    if size == 0:
        return 0
    return np.int64(math.floor(np.float32(math.log2(np.float64(size))))) - 2 + 127 & 255


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        e = exponent(largest(x))
        blocks[at + E] = e
        put_nibbles(blocks, at + QS, nearest_fp4(x, POWER[e]))


encode = encoder(kernel)
