"""The GPU's encoder of q5_1: as q4_1 with one more bit, stored apart; the layout is in formats/q5_1.py."""

from __future__ import annotations

from typing import Any

from ...formats.q5_1 import DTYPE, QH, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import VALUES, block_kernel, fifth_bits, inverse, lowest, nibbles, two_words
from .q4_1 import scaled, steps


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    low = lowest(v, part)
    d = scaled(v, low, 31)
    per = inverse(d)
    q = cuda.local.array(VALUES, int32)
    for i in range(VALUES):
        q[i] = ptx.truncated(steps(v[i], low, per))
    near, far = two_words(q)
    scale, least, bits = ptx.half_bits(d), ptx.half_bits(low), fifth_bits(near, far, part)
    if live:
        ptx.store4(at + uint64(QS) + uint64(part) * uint64(4), nibbles(near, far))
        if part == uint32(0):
            ptx.store4(at, ptx.low_halves(scale, least))
            ptx.store4(at + uint64(QH), bits)
    return max(uint32(scale & uint32(0x7C00)), uint32(least & uint32(0x7C00)))


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q5_1", encode, DTYPE.itemsize)
