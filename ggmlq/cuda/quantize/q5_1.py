"""q5_1: as q4_1 with one more bit, kept apart; the layout is in formats/q5_1.py."""

from __future__ import annotations

from typing import Any

from ...formats.q5_1 import DTYPE, QH, QS, M
from .. import ptx
from ..atoms import inlined
from ..language import float32, uint32, uint64
from ..launch import Kernel, family
from ._block import block_kernel, four_bytes, highest, inverse, lowest, store_fifth_bits, store_nibbles
from .q4_1 import steps


@inlined
def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
    low, high = lowest(v0, v1, v2, v3), highest(v0, v1, v2, v3)
    d = ptx.div(ptx.add(ptx.sub(high, low), float32(0)), float32(31))  # +0: never -0.0
    per = inverse(d)
    scale, least = ptx.half_bits(d), ptx.half_bits(low)
    word = four_bytes(steps(v0, low, per), steps(v1, low, per), steps(v2, low, per), steps(v3, low, per))
    store_fifth_bits(at + uint64(QH), word, part, live)
    store_nibbles(at + uint64(QS), word, part, live, True)
    if live and part == uint32(0):
        ptx.store2(at, scale)
        ptx.store2(at + uint64(M), least)
    return max(scale & uint32(0x7C00), least & uint32(0x7C00))


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q5_1", encode, DTYPE.itemsize)
