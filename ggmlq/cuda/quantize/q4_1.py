"""q4_1: codes count steps from the lowest value; the layout is in formats/q4_1.py."""

from __future__ import annotations

from typing import Any

from ...formats.q4_1 import DTYPE, QS, M
from .. import ptx
from ..atoms import inlined
from ..language import float32, int32, uint32, uint64
from ..launch import Kernel, family
from ._block import block_kernel, four_bytes, highest, inverse, lowest, store_nibbles, truncate


@inlined
def steps(value: Any, low: Any, per: Any) -> Any:
    """The nearest number of steps above the lowest value."""
    return truncate(ptx.add(ptx.mul(ptx.sub(value, low), per), float32(0.5)))


@inlined
def code(value: Any, low: Any, per: Any) -> Any:
    return min(steps(value, low, per), int32(15))


@inlined
def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
    low, high = lowest(v0, v1, v2, v3), highest(v0, v1, v2, v3)
    d = ptx.div(ptx.add(ptx.sub(high, low), float32(0)), float32(15))  # +0: never -0.0
    per = inverse(d)
    scale, least = ptx.half_bits(d), ptx.half_bits(low)
    word = four_bytes(code(v0, low, per), code(v1, low, per), code(v2, low, per), code(v3, low, per))
    store_nibbles(at + uint64(QS), word, part, live, True)
    if live and part == uint32(0):
        ptx.store2(at, scale)
        ptx.store2(at + uint64(M), least)
    return max(scale & uint32(0x7C00), least & uint32(0x7C00))


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q4_1", encode, DTYPE.itemsize)
