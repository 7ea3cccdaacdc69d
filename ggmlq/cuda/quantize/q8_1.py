"""The GPU's encoder of q8_1: as q8_0 with the block's sum beside the scale; see formats/q8_1.py.

Programs differ in how they divide and round and in what they store as the sum. ``gq.quantize`` writes
``ggml-ref``; llama.cpp's CUDA backend makes ``ggml-mmvq`` of activations, for products of up to 8 rows.
"""

from __future__ import annotations

from typing import Any

from ...formats.q8_1 import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import (
    VALUES,
    block_kernel,
    half_away,
    inverse,
    largest_size,
    sum_of_codes,
    sum_of_values,
    two_words,
)


@inlined
def by_the_inverse(value: Any, d: Any, per: Any) -> Any:
    """The code of a value by multiplication: value × ``per``, the inverse of d."""
    return half_away(ptx.mul(value, per))


@inlined
def by_the_scale(value: Any, d: Any, per: Any) -> Any:
    """The code of a value by division: value / d, or 0 if d is 0, as where the whole block is."""
    v = ptx.div(value, d)
    return min(max(half_away(v if d != float32(0) else float32(0)), int32(-127)), int32(127))


def encoder(code: Any, sum_of_floats: bool) -> Any:
    """The device function that encodes a block; its sum is that of the floats, or of the codes times d."""

    @inlined
    def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
        d = ptx.div(largest_size(v), float32(127))
        per = inverse(d)
        q = cuda.local.array(VALUES, int32)
        for i in range(VALUES):
            q[i] = code(v[i], d, per)
        s = sum_of_values(v) if sum_of_floats else ptx.mul(float32(sum_of_codes(q)), d)
        scale, sum_bits = ptx.half_bits(d), ptx.half_bits(s)
        near, far = two_words(q)
        if live:
            codes = at + uint64(QS) + uint64(part) * uint64(4)
            ptx.store4(codes, near)
            ptx.store4(codes + uint64(16), far)
            if part == uint32(0):
                ptx.store4(at, ptx.low_halves(scale, sum_bits))
        return max(uint32(scale & uint32(0x7C00)), uint32(sum_bits & uint32(0x7C00)))

    return encode


ENCODERS = {"ggml-ref": encoder(by_the_inverse, False), "ggml-mmvq": encoder(by_the_scale, True)}


@family((arithmetic,) for arithmetic in ENCODERS)
def kernel(arithmetic: str = "ggml-ref") -> Kernel:
    return block_kernel(f"quantize q8_1 as {arithmetic}", ENCODERS[arithmetic], DTYPE.itemsize)
