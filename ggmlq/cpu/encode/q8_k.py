"""The encoder of q8_K: the extreme of 256 values, then 16 at a time with their sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.q8_k import BSUMS, DTYPE, QS, D
from ..lanes import convert, load, recast, store, total
from ..machine.jit import inner, jit
from ._simple import at_most, encoder, extreme, truncated

SIZE = DTYPE.itemsize
I8, I16, I32, U8 = types.int8, types.int16, types.int32, types.uint8
WHOLE = np.float32(12582912)  # adding it leaves no fraction: to nearest, ties to even


@inner
def signed_extreme(values: Any, at: int) -> Any:
    """Of 256 values from a place on, the one of largest magnitude, the first of equals."""
    found = extreme(values, at, load(values, at, 32))
    for r in range(1, 8):
        other = extreme(values, at + r * 32, load(values, at + r * 32, 32))
        if abs(other) > abs(found):
            found = other
    return found


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 256):
        at = b * SIZE
        most = signed_extreme(values, b * 256)
        k = np.float32(0) if most == 0 else np.float32(-127) / most
        d = np.float32(0) if most == 0 else np.float32(1) / k
        store(blocks, at + D, recast(d, U8))
        for g in range(16):
            v = load(values, b * 256 + g * 16, 16) * k
            q = recast(at_most(truncated(v + WHOLE - WHOLE), 127), I8)
            store(blocks, at + QS + g * 16, recast(q, U8))
            store(blocks, at + BSUMS + g * 2, recast(I16(total(convert(q, I32))), U8))


encode = encoder(kernel)
