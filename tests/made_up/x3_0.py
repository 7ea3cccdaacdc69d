"""x3_0: 3.5 bits a weight, ``value = d * (q - 4)``; 32 weights share d.

byte    0 1 | 2 … 13
        d   | qs
qs      96 bits, the lowest first: bits 3 i … 3 i + 2 = weight i
"""

from __future__ import annotations

import numpy as np

from ggmlq.formats._bits import half, offset_of, u8
from ggmlq.formats.format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (12,))])
D, QS = (offset_of(DTYPE, f) for f in ("d", "qs"))


def unpack(blocks: Blocks) -> Parts:
    bits = np.unpackbits(blocks["qs"], axis=-1, bitorder="little").reshape(*blocks.shape, 32, 3)
    codes = (bits * np.array([1, 2, 4], np.uint8)).sum(axis=-1, dtype=np.int8) - np.int8(4)
    return Parts(codes, blocks["d"].astype(np.float32)[..., None], None)


def code(block: Bytes, i: int) -> int:
    at = 3 * i
    found = 0
    for b in range(3):
        found |= (u8(block, QS + (at + b) // 8) >> (at + b) % 8 & 1) << b
    return found - 4


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


FORMAT = BlockFormat(
    name="x3_0", id=1000, block_size=32, group=32, dtype=DTYPE, unpack=unpack, code=code, scale=scale, zero=4
)
