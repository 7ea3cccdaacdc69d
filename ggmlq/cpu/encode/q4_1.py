"""The encoder of q4_1: without weights 32 values at a time, with them by search."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.q4_1 import DTYPE, FORMAT, PROGRAM, QS, D, M
from ..lanes import load
from ..machine.jit import jit
from ._simple import at_most, encoder, highest, inverse, lowest, put_half, put_nibbles, truncated
from ._tiles import encoder as searching

SIZE = DTYPE.itemsize


@jit
def plain(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        low = lowest(values, b * 32, x)
        d = (highest(x) - low + np.float32(0)) / np.float32(15)  # +0: never -0.0
        q = at_most(truncated((x - low) * inverse(d) + 0.5), 15)
        put_half(blocks, at + D, d)
        put_half(blocks, at + M, low)
        put_nibbles(blocks, at + QS, q)


encode = encoder(plain, searching(PROGRAM, FORMAT.block_size))
