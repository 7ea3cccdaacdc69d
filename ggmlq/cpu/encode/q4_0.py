"""The encoder of q4_0: without weights 32 values at a time, with them by search."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.q4_0 import DTYPE, FORMAT, PROGRAM, QS, D
from ..jit import jit
from ..lanes import load
from ._simple import at_most, extreme, inverse, put_half, put_nibbles, truncated
from ._tiles import encoder

SIZE = DTYPE.itemsize
weighted = encoder(PROGRAM, FORMAT.block_size)


@jit
def plain(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 32):
        at = b * SIZE
        x = load(values, b * 32, 32)
        d = extreme(values, b * 32, x) / np.float32(-8)
        q = at_most(truncated(x * inverse(d) + 8.5), 15)
        put_half(blocks, at + D, d)
        put_nibbles(blocks, at + QS, q)


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    if imatrix is None:
        plain(values.reshape(-1), blocks.reshape(-1))
    else:
        weighted(values, imatrix, blocks)
