"""q1_0: 1.125 bits a weight, ``value = ±d``; 128 weights share d.

struct block_q1_0 { ggml_half d; uint8_t qs[16]; }

byte   0 1 | 2      3      …  17
       d   | qs[0]  qs[1]  …  qs[15]
qs[j]  bit b = weight 8 j + b, the least significant bit first; 1 means +d, 0 means -d
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, f32, half, offset_of, u8
from .format import BlockFormat, Blocks, Bytes, Floats, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(bits(blocks["qs"]).view(np.int8) * np.int8(2) - np.int8(1), f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return (u8(block, QS + i // 8) >> i % 8 & 1) * 2 - 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    total = np.zeros(x.shape[:-1], np.float32)
    for i in range(128):  # ggml sums in the order of the index; another order rounds differently
        total += np.abs(x[..., i])
    blocks = np.empty(x.shape[:-1], DTYPE)
    blocks["d"] = total / np.float32(128)
    blocks["qs"] = np.packbits(x >= 0, axis=-1, bitorder="little")
    return blocks


FORMAT = BlockFormat(
    name="q1_0", id=41, block_size=128, group=128, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=pack,
)  # fmt: skip
