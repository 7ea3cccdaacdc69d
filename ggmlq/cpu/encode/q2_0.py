"""The encoder of q2_0: 32 of 64 values at a time; four codes in a 32-bit lane move into its low byte."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q2_0 import DTYPE, QS, D
from ..lanes import chosen, convert, load, recast, store
from ..machine.jit import jit
from ._simple import encoder, half_away, inverse, largest, put_half

SIZE = DTYPE.itemsize
U8, U32 = types.uint8, types.uint32


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 64):
        at = b * SIZE
        d = max(largest(load(values, b * 64, 32)), largest(load(values, b * 64 + 32, 32)))
        put_half(blocks, at + D, d)
        for r in range(2):
            q = half_away(load(values, b * 64 + r * 32, 32) * inverse(d)) + 1
            fours = recast(convert(chosen(q > 0, q, 0), U8), U32)
            pairs = fours | fours >> 6
            store(blocks, at + QS + r * 8, convert(pairs | pairs >> 12, U8))


encode = encoder(kernel)
