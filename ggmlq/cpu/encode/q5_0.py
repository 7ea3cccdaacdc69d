"""The encoder of q5_0: without weights 32 values at a time, with them by search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q5_0 import DTYPE, FORMAT, PROGRAM, QH, QS, D
from ..lanes import load, recast, store
from ..machine.jit import jit
from ._simple import at_most, encoder, extreme, inverse, put_half, put_nibbles, truncated
from ._tiles import encoder as searching

SIZE = DTYPE.itemsize


@jit
def plain(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        d = extreme(values, b * 32, x) / np.float32(-16)
        q = at_most(truncated(x * inverse(d) + 16.5), 31)
        put_half(blocks, at + D, d)
        store(blocks, at + QH, recast((q & 16) != 0, types.uint8))
        put_nibbles(blocks, at + QS, q)


encode = encoder(plain, searching(PROGRAM, FORMAT.block_size))
