"""mxfp4: 4.25 bits a weight, ``value = 2**(e - 128) * FP4[q]``; 32 weights share the exponent e.

    struct block_mxfp4 { uint8_t e; uint8_t qs[16]; }

    byte   0 | 1      2      …  16
           e | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 7654 = q of weight j + 16,  bits 3210 = q of weight j
    q      bit 3 = sign, bits 21 = exponent, bit 0 = mantissa (e2m1): 0 ½ 1 1½ 2 3 4 6

The table FP4 holds twice the e2m1 values, so the E8M0 exponent has bias 128 instead of 127.
e = 255 means NaN in the OCP standard and on GPUs; ggml's CPU code reads it as 2**127.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._bits import level, nibble, nibbles, offset_of, u8
from ._extremes import largest
from ._levels import nearest_fp4
from ._program import Packer, Tile, Vector, at_once, entry, get, log2, put, real, where
from ._round import truncate
from ._tables import FP4
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("e", "u1"), ("qs", "u1", (16,))])
E, QS = offset_of(DTYPE, "e"), offset_of(DTYPE, "qs")
POWER = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def unpack(blocks: Blocks) -> Parts:
    return Parts(FP4[nibbles(blocks["qs"])], POWER[blocks["e"]][..., None], None)


def index(block: Bytes, i: int) -> int:
    return nibble(block, QS, i)


def code(block: Bytes, i: int) -> int:
    return level(FP4, index(block, i))


def sub(block: Bytes, g: int) -> int:
    return u8(block, E)


def scale(block: Bytes, g: int) -> np.float32:
    return np.float32(POWER[sub(block, g)])


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    size = largest(x, 32)
    e = exponent(size)
    put(out, E, e)
    scale = entry(POWER, e)
    for i in at_once(16):
        low, high = nearest_fp4(get(x[:16], i), scale), nearest_fp4(get(x[16:], i), scale)
        put(out[QS : QS + 16], i, low | high << 4)


def exponent(size: Vector) -> Vector:
    """The byte e for a largest magnitude.

    C's log2f is exact only as far as double precision rounded to float: just below a power of
    two it already gives the next integer. Reading the exponent's bits would differ there.
    """
    power = log2(size)
    e = truncate(power)
    e = e - where(real(e) > power, 1, 0)
    return where(size > 0, e - 2 + 127 & 255, 0)


def forbidden(blocks: Blocks) -> NDArray[np.bool_]:
    return np.asarray(blocks["e"] == 255)


FORMAT = BlockFormat(
    name="mxfp4", id=39, block_size=32, group=32, dtype=DTYPE,
    unpack=unpack, code=code, index=index, scale=scale, scales=Scales(sub, table=POWER),
    pack=Packer(encode, DTYPE), forbidden=forbidden, fallback="f16",
)  # fmt: skip
