"""q8_K: 9.125 bits a weight, ``value = d * q``; 256 values share d, and bsums holds sums of 16.

    struct block_q8_K { float d; int8_t qs[256]; int16_t bsums[16]; }

    byte   0 1 2 3 | 4      5      …  259     | 260       …  291
           d       | qs[0]  qs[1]  …  qs[255] | bsums[0]  …  bsums[15]

What llama.cpp's CPU backend turns activations into before it multiplies them with K-quants and
IQ formats; never in files. d is a float, and negative when the extreme value is positive: that
value always gets the code -127. bsums serve the minima of the other operand.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, i8, offset_of, u32
from ._round import half_even, signed_extreme
from .format import BlockFormat, Blocks, Bytes, Floats, Parts

DTYPE = np.dtype([("d", "<f4"), ("qs", "i1", (256,)), ("bsums", "<i2", (16,))])
D, QS, BSUMS = (offset_of(DTYPE, field) for field in ("d", "qs", "bsums"))
# A float's 8 exponent bits to the weight of its last mantissa bit.
FLOAT_UNIT = np.ldexp(np.float32(1), np.maximum(np.arange(256), 1) - 150).astype(np.float32)


def unpack(blocks: Blocks) -> Parts:
    return Parts(blocks["qs"], f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return i8(block, QS + i)


def scale(block: Bytes, g: int) -> np.float32:
    bits = u32(block, D)
    exponent = bits >> 23 & 255
    mantissa = bits & 0x7FFFFF
    if exponent == 255:
        value = np.float32(np.nan) if mantissa else np.float32(np.inf)
    else:
        if exponent:
            mantissa |= 0x800000
        value = np.float32(mantissa) * FLOAT_UNIT[exponent]
    return -value if bits & 0x80000000 else value


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    extreme = signed_extreme(x)
    k = np.where(extreme == 0, np.float32(0), np.float32(-127) / extreme)
    q = np.minimum(half_even(k[..., None] * x), 127).astype(np.int8)
    blocks = np.zeros(x.shape[:-1], DTYPE)
    blocks["d"] = np.where(extreme == 0, np.float32(0), np.float32(1) / k)
    blocks["qs"] = q
    blocks["bsums"] = q.reshape(*x.shape[:-1], 16, 16).sum(axis=-1, dtype=np.int16)
    return blocks


FORMAT = BlockFormat(
    name="q8_K", id=15, block_size=256, group=256, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=pack,
)  # fmt: skip
