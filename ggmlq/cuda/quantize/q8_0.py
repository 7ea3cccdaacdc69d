"""The GPU's encoder of q8_0: codes x / (amax / 127), halves away from zero; see formats/q8_0.py."""

from __future__ import annotations

from typing import Any

from ...formats.q8_0 import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import VALUES, block_kernel, half_away, inverse, largest_size, store_word, two_words


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    d = ptx.div(largest_size(v), float32(127))
    per = inverse(d)
    q = cuda.local.array(VALUES, int32)
    for i in range(VALUES):
        q[i] = half_away(ptx.mul(v[i], per))
    scale = ptx.half_bits(d)
    near, far = two_words(q)
    if live:
        codes = at + uint64(QS) + uint64(part) * uint64(4)
        store_word(codes, near)
        store_word(codes + uint64(16), far)
        if part == uint32(0):
            ptx.store2(at, scale)
    return scale


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q8_0", encode, DTYPE.itemsize)
