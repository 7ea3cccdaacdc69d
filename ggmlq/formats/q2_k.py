"""q2_K: 2.625 bits a weight, ``value = d * sc * q - dmin * m``; 256 weights, 16 share sc and m.

struct block_q2_K { uint8_t scales[16]; uint8_t qs[64];
                    union { struct { ggml_half d, dmin; }; ggml_half2 dm; }; }

byte       0 … 15 | 16 … 79 | 80 81 | 82 83
           scales | qs      | d     | dmin
scales[g]  bits 7654 = m,  bits 3210 = sc of weights 16 g … 16 g + 15
qs         32 bytes serve 128 weights: byte j of such a half holds
           bits 76 = q of weight j + 96,  54 = j + 64,  32 = j + 32,  10 = j
"""

from __future__ import annotations

import numpy as np

from ._bits import half, offset_of, pair_bits, pairs, u8
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])
SCALES, QS, D, DMIN = (offset_of(DTYPE, field) for field in ("scales", "qs", "d", "dmin"))


def unpack(blocks: Blocks) -> Parts:
    d = blocks["d"].astype(np.float32)[..., None]
    dmin = blocks["dmin"].astype(np.float32)[..., None]
    scales = blocks["scales"]
    return Parts(pairs(blocks["qs"]).view(np.int8), d * (scales & 15), dmin * (scales >> 4))


def code(block: Bytes, i: int) -> int:
    return pair_bits(block, QS, i)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(u8(block, SCALES + g) & 15)


def offset(block: Bytes, g: int) -> np.float32:
    return half(block, DMIN) * np.float32(u8(block, SCALES + g) >> 4)


FORMAT = BlockFormat(
    name="q2_K", id=10, block_size=256, group=16, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, imatrix="optional",
)  # fmt: skip
