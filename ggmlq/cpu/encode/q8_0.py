"""The encoder of q8_0: 32 values at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q8_0 import DTYPE, QS, D
from ..lanes import convert, load, store
from ..machine.jit import jit
from ._simple import encoder, half_away, inverse, largest, put_half

SIZE = DTYPE.itemsize
U8 = types.uint8


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        d = largest(x) / np.float32(127)
        put_half(blocks, at + D, d)
        store(blocks, at + QS, convert(half_away(x * inverse(d)), U8))


encode = encoder(kernel)
