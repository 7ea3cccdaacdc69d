"""q8_0: codes x / (amax / 127), halves away from zero; the layout is in formats/q8_0.py."""

from __future__ import annotations

from typing import Any

from ...formats.q8_0 import DTYPE, QS
from .. import ptx
from ..atoms import inlined
from ..language import float32, uint32, uint64
from ..launch import Kernel, family
from ._block import block_kernel, four_bytes, half_away, inverse, largest_size, store_word


@inlined
def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
    d = ptx.div(largest_size(v0, v1, v2, v3), float32(127))
    per = inverse(d)
    q0, q1 = half_away(ptx.mul(v0, per)), half_away(ptx.mul(v1, per))
    q2, q3 = half_away(ptx.mul(v2, per)), half_away(ptx.mul(v3, per))
    scale = ptx.half_bits(d)
    if live:
        store_word(at + uint64(QS) + uint64(part) * uint64(4), four_bytes(q0, q1, q2, q3))
        if part == uint32(0):
            ptx.store2(at, scale)
    return scale


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q8_0", encode, DTYPE.itemsize)
