"""x5_K: 5.625 bits a weight, ``value = d * sc * q - dmin * m``; 256 weights, 32 share sc and m.

byte    0 1 | 2 3  | 4 … 11 | 12 … 19 | 20 … 179
        d   | dmin | sc     | m       | qs
sc, m   six bits of each byte; the other two mean nothing
qs      five planes of 32 bytes: bit i of plane b = bit b of weight i
"""

from __future__ import annotations

import numpy as np

from ggmlq.formats._bits import half, offset_of, u8
from ggmlq.formats.format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("sc", "u1", (8,)), ("m", "u1", (8,)), ("qs", "u1", (160,))])
D, DMIN, SC, M, QS = (offset_of(DTYPE, f) for f in ("d", "dmin", "sc", "m", "qs"))


def unpack(blocks: Blocks) -> Parts:
    planes = np.unpackbits(blocks["qs"], axis=-1, bitorder="little").reshape(*blocks.shape, 5, 256)
    codes = (planes * np.array([1, 2, 4, 8, 16], np.uint8)[:, None]).sum(axis=-2, dtype=np.int8)
    d, dmin = blocks["d"].astype(np.float32)[..., None], blocks["dmin"].astype(np.float32)[..., None]
    sc, m = ((blocks[name] & 63).astype(np.float32) for name in ("sc", "m"))
    return Parts(codes, d * sc, dmin * m)


def code(block: Bytes, i: int) -> int:
    found = 0
    for b in range(5):
        found |= (u8(block, QS + 32 * b + i // 8) >> i % 8 & 1) << b
    return found


def sub(block: Bytes, g: int) -> int:
    return u8(block, SC + g) & 63


def low(block: Bytes, g: int) -> int:
    return u8(block, M + g) & 63


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g))


def offset(block: Bytes, g: int) -> np.float32:
    return half(block, DMIN) * np.float32(low(block, g))


FORMAT = BlockFormat(
    name="x5_K", id=1001, block_size=256, group=32, dtype=DTYPE, unpack=unpack, code=code, scale=scale,
    offset=offset, scales=Scales(sub, low=low),
)  # fmt: skip
