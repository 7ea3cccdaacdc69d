"""The GPU's encoder of q4_1: codes count steps from the lowest value; the layout is in formats/q4_1.py."""

from __future__ import annotations

from typing import Any

from ...formats.q4_1 import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import VALUES, block_kernel, highest, inverse, lowest, nibbles, two_words


@inlined
def scaled(v: Any, low: Any, most: Any) -> Any:
    """The size of a step if ``most`` of them reach from the lowest value to the highest."""
    return ptx.div(ptx.add(ptx.sub(highest(v), low), float32(0)), float32(most))  # +0: never -0.0


@inlined
def steps(value: Any, low: Any, per: Any) -> Any:
    """The number of steps above the lowest value, and a half: to be truncated."""
    return ptx.add(ptx.mul(ptx.sub(value, low), per), float32(0.5))


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    low = lowest(v, part)
    d = scaled(v, low, 15)
    per = inverse(d)
    q = cuda.local.array(VALUES, int32)
    for i in range(VALUES):
        q[i] = ptx.truncated(ptx.smaller(steps(v[i], low, per), float32(15)))
    scale, least = ptx.half_bits(d), ptx.half_bits(low)
    near, far = two_words(q)
    if live:
        ptx.store4(at + uint64(QS) + uint64(part) * uint64(4), nibbles(near, far))
        if part == uint32(0):
            ptx.store4(at, ptx.low_halves(scale, least))
    return max(uint32(scale & uint32(0x7C00)), uint32(least & uint32(0x7C00)))


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q4_1", encode, DTYPE.itemsize)
