"""The GPU's encoder of q4_0: the extreme value gets code 0, so d is that value / -8; see formats/q4_0.py."""

from __future__ import annotations

from typing import Any

from ...formats.q4_0 import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import VALUES, block_kernel, extreme, inverse, nibbles, store_word, two_words


@inlined
def code_all(q: Any, v: Any, d: Any, highest: Any) -> None:
    """Codes up to ``highest`` with the zero in the middle; all 0 where 1 / d overflows."""
    per = inverse(d)
    middle = float32(highest / 2 + 1) if per != float32(0) or d == float32(0) else float32(0)
    for i in range(VALUES):
        steps = ptx.add(ptx.mul(v[i], per), middle)
        q[i] = ptx.truncated(ptx.smaller(steps, float32(highest)))


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    # adding +0 makes the extreme of a block of -0.0 a +0.0; a product with 2**-3 is that quotient
    d = ptx.mul(ptx.add(extreme(v, part), float32(0)), float32(-0.125))
    q = cuda.local.array(VALUES, int32)
    code_all(q, v, d, 15)
    scale = ptx.half_bits(d)
    near, far = two_words(q)
    if live:
        store_word(at + uint64(QS) + uint64(part) * uint64(4), nibbles(near, far))
        if part == uint32(0):
            ptx.store2(at, scale)
    return scale


@family()
def kernel() -> Kernel:
    return block_kernel("quantize q4_0", encode, DTYPE.itemsize)
