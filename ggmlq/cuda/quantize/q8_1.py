"""q8_1: as q8_0 with the block's sum beside the scale; the layout is in formats/q8_1.py.

Programs differ in how they divide and round and in what they keep as the sum. ``ggml-ref`` is what
``gq.quantize`` writes, ``ggml-mmvq`` is what llama.cpp's CUDA backend multiplies up to 8 rows of.
"""

from __future__ import annotations

from typing import Any

from ...formats.q8_1 import DTYPE, QS
from .. import ptx
from ..atoms import inlined
from ..language import float32, int32, uint32, uint64
from ..launch import Kernel, family
from ._block import (
    block_kernel,
    four_bytes,
    half_away,
    inverse,
    largest_size,
    store_word,
    sum_of_codes,
    sum_of_values,
)

S = QS - 2


@inlined
def by_the_inverse(value: Any, d: Any) -> Any:
    return half_away(ptx.mul(value, inverse(d)))


@inlined
def by_the_scale(value: Any, d: Any) -> Any:
    """X / d, and 0 where all are 0."""
    v = ptx.div(value, d)
    return min(max(half_away(v if d != float32(0) else float32(0)), int32(-127)), int32(127))


def encoder(code: Any, sum_of_floats: bool) -> Any:
    @inlined
    def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
        d = ptx.div(largest_size(v0, v1, v2, v3), float32(127))
        q0, q1, q2, q3 = code(v0, d), code(v1, d), code(v2, d), code(v3, d)
        if sum_of_floats:
            s = sum_of_values(v0, v1, v2, v3)
        else:
            s = ptx.mul(float32(sum_of_codes(q0, q1, q2, q3)), d)
        scale, kept = ptx.half_bits(d), ptx.half_bits(s)
        if live:
            store_word(at + uint64(QS) + uint64(part) * uint64(4), four_bytes(q0, q1, q2, q3))
            if part == uint32(0):
                ptx.store2(at, scale)
                ptx.store2(at + uint64(S), kept)
        return max(scale & uint32(0x7C00), kept & uint32(0x7C00))

    return encode


ENCODERS = {"ggml-ref": encoder(by_the_inverse, False), "ggml-mmvq": encoder(by_the_scale, True)}


@family((arithmetic,) for arithmetic in ENCODERS)
def kernel(arithmetic: str = "ggml-ref") -> Kernel:
    return block_kernel(f"quantize q8_1 as {arithmetic}", ENCODERS[arithmetic], DTYPE.itemsize)
