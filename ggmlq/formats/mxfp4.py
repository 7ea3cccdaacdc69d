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

from ._bits import level, nibble, nibbles, offset_of, pack_nibbles, u8
from ._round import truncate
from ._tables import FP4, nearest_fp4
from .format import BlockFormat, Blocks, Bytes, Floats, Parts, Scales

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


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    largest = np.abs(x).max(axis=-1)
    # C's log2f is exact only as far as double precision rounded to float: just below a power of
    # two it already gives the next integer. Reading the exponent's bits would differ there.
    log2 = np.log2(largest.astype(np.float64)).astype(np.float32)
    e = np.where(largest > 0, truncate(np.floor(log2) - 2 + 127), 0).astype(np.uint8)
    blocks = np.empty(x.shape[:-1], DTYPE)
    blocks["e"] = e
    blocks["qs"] = pack_nibbles(nearest_fp4(x, POWER[e][..., None]))
    return blocks


def forbidden(blocks: Blocks) -> NDArray[np.bool_]:
    return np.asarray(blocks["e"] == 255)


FORMAT = BlockFormat(
    name="mxfp4", id=39, block_size=32, group=32, dtype=DTYPE,
    unpack=unpack, code=code, index=index, scale=scale, scales=Scales(sub, table=POWER), pack=pack,
    forbidden=forbidden, fallback="f16",
)  # fmt: skip
