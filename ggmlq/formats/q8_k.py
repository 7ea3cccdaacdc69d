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
from ._extremes import extreme_of_256
from ._packing import put_float, sum_of_bytes
from ._program import Packer, Tile, at_once, get, nearest, part, put, small, smaller, where
from .format import BlockFormat, Blocks, Bytes, Parts

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


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    codes, low, high = out[QS : QS + 256], small(x, 16), small(x, 16)
    extreme = extreme_of_256(x)
    k = where(extreme != 0, np.float32(-127) / extreme, np.float32(0))
    put_float(out, D, where(extreme != 0, np.float32(1) / k, np.float32(0)))
    for i in at_once(256):
        put(codes, i, smaller(nearest(k * get(x, i)), 127))
    for g in at_once(16):
        total = sum_of_bytes(part(codes, g, 16), 16)
        put(low, g, total)
        put(high, g, total >> 8)
    for g in range(16):
        put(out, BSUMS + 2 * g, get(low, g))
        put(out, BSUMS + 2 * g + 1, get(high, g))


FORMAT = BlockFormat(
    name="q8_K", id=15, block_size=256, group=256, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE),
)  # fmt: skip
