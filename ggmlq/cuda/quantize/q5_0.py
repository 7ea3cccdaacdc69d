"""q5_0: as q4_0 with one more bit, kept apart; the layout is in formats/q5_0.py."""

from __future__ import annotations

from typing import Any

from ...formats.q5_0 import DTYPE, QH, QS
from .. import ptx
from ..atoms import inlined
from ..language import float32, int32, uint32, uint64
from ..launch import Kernel, family
from ._block import block_kernel, extreme, four_bytes, inverse, store_fifth_bits, store_nibbles, truncate


@inlined
def code(value: Any, per: Any) -> Any:
    return min(truncate(ptx.add(ptx.mul(value, per), float32(16.5))), int32(31))


@inlined
def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
    d = ptx.div(ptx.add(extreme(v0, v1, v2, v3), float32(0)), float32(-16))
    per = inverse(d)
    scale = ptx.half_bits(d)
    word = four_bytes(code(v0, per), code(v1, per), code(v2, per), code(v3, per))
    store_fifth_bits(at + uint64(QH), word, part, live)
    store_nibbles(at + uint64(QS), word, part, live, True)
    if live and part == uint32(0):
        ptx.store2(at, scale)
    return scale


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q5_0", encode, DTYPE.itemsize)
