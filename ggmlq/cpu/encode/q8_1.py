"""The encoder of q8_1: 32 values at a time, and the sum of their codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q8_1 import DTYPE, QS, D, S
from ..lanes import convert, load, recast, store, total
from ..machine.jit import jit
from ._simple import encoder, half_away, inverse, largest, put_half

SIZE = DTYPE.itemsize
I8, I32, U8 = types.int8, types.int32, types.uint8


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        d = largest(x) / np.float32(127)
        q = convert(half_away(x * inverse(d)), I8)
        put_half(blocks, at + D, d)
        put_half(blocks, at + S, np.float32(total(convert(q, I32))) * d)
        store(blocks, at + QS, recast(q, U8))


encode = encoder(kernel)
