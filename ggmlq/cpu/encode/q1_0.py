"""The encoder of q1_0: a mean magnitude, summed in the order of the index as ggml does, and signs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q1_0 import DTYPE, QS, D
from ..lanes import load, recast, store
from ..machine.jit import jit
from ._simple import encoder, put_half

SIZE = DTYPE.itemsize
U8 = types.uint8


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 128):
        at = b * SIZE
        total = np.float32(0)
        for i in range(b * 128, b * 128 + 128):
            total += abs(values[i])
        put_half(blocks, at + D, total / np.float32(128))
        for r in range(4):
            store(blocks, at + QS + r * 4, recast(load(values, b * 128 + r * 32, 32) >= 0, U8))


encode = encoder(kernel)
