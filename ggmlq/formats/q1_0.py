"""q1_0: 1.125 bits a weight, ``value = ±d``; 128 weights share d.

struct block_q1_0 { ggml_half d; uint8_t qs[16]; }

byte   0 1 | 2      3      …  17
       d   | qs[0]  qs[1]  …  qs[15]
qs[j]  bit b = weight 8 j + b, the least significant bit first; 1 means +d, 0 means -d
"""

from __future__ import annotations

import numpy as np

from ._bits import bits as each_bit
from ._bits import f32, half, offset_of, u8
from ._packing import put_half
from ._program import Packer, Tile, absolute, at_once, bits, get, part, put, to_half, zeros
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(each_bit(blocks["qs"]).view(np.int8) * np.int8(2) - np.int8(1), f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return (u8(block, QS + i // 8) >> i % 8 & 1) * 2 - 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    total = zeros(x)
    for i in range(128):  # ggml sums in the order of the index; another order rounds differently
        total = total + absolute(get(x, i))
    put_half(out, D, to_half(total / np.float32(128)))
    for i in at_once(16):
        eight = part(x, i, 8)
        minus = bits(get(eight, 0) + np.float32(0)) >> 31 & 1  # -0.0 + 0.0 is 0.0
        for bit in range(1, 8):
            minus = minus | (bits(get(eight, bit) + np.float32(0)) >> 31 & 1) << bit
        put(out[QS : QS + 16], i, minus ^ 255)


FORMAT = BlockFormat(
    name="q1_0", id=41, block_size=128, group=128, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE),
)  # fmt: skip
