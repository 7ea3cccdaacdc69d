"""The GPU's encoder of q5_0: as q4_0 with one more bit, stored apart; the layout is in formats/q5_0.py."""

from __future__ import annotations

from typing import Any

from ...formats.q5_0 import DTYPE, QH, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import VALUES, block_kernel, extreme, fifth_bits, nibbles, store_word, two_words
from .q4_0 import code_all


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    d = ptx.mul(ptx.add(extreme(v, part), float32(0)), float32(-0.0625))
    q = cuda.local.array(VALUES, int32)
    code_all(q, v, d, 31)
    low, high = two_words(q)
    scale, bits = ptx.half_bits(d), fifth_bits(low, high, part)
    if live:
        store_word(at + uint64(QS) + uint64(part) * uint64(4), nibbles(low, high))
        if part == uint32(0):
            ptx.store2(at, scale)
            store_word(at + uint64(QH), bits)
    return scale


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q5_0", encode, DTYPE.itemsize)
