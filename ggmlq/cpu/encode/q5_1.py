"""The encoder of q5_1: without weights 32 values at a time, with them by search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q5_1 import DTYPE, FORMAT, PROGRAM, QH, QS, D, M
from ..lanes import convert, load, recast, store
from ..machine.jit import jit
from ._simple import encoder, highest, inverse, lowest, put_half, put_nibbles, truncated
from ._tiles import encoder as searching

SIZE = DTYPE.itemsize
U8 = types.uint8


@jit
def plain(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        low = lowest(values, b * 32, x)
        d = (highest(x) - low + np.float32(0)) / np.float32(31)  # +0: never -0.0
        q = convert(truncated((x - low) * inverse(d) + 0.5), U8)
        put_half(blocks, at + D, d)
        put_half(blocks, at + M, low)
        store(blocks, at + QH, recast((q & 16) != 0, U8))
        put_nibbles(blocks, at + QS, q)


encode = encoder(plain, searching(PROGRAM, FORMAT.block_size))
