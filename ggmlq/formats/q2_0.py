"""q2_0: 2.25 bits a weight, ``value = d * (q - 1)``; 64 weights share d.

    struct block_q2_0 { ggml_half d; uint8_t qs[16]; }

    byte   0 1 | 2      3      …  17
           d   | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 76 = q of weight 4j + 3,  54 = 4j + 2,  32 = 4j + 1,  10 = 4j

Values are -d, 0, d and 2d; ggml's own encoder never writes 2d.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, offset_of, u8
from ._extremes import largest
from ._packing import put_half
from ._program import Packer, Tile, at_once, get, larger, part, put, small, to_half
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")
SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def unpack(blocks: Blocks) -> Parts:
    stored = (blocks["qs"][..., None] >> SHIFTS & 3).reshape(*blocks.shape, 64)
    return Parts(stored.view(np.int8) - np.int8(1), f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return (u8(block, QS + i // 4) >> i % 4 * 2 & 3) - 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    codes, d = small(x, 64), largest(x, 64)
    k = inverse(d)
    put_half(out, D, to_half(d))
    for i in at_once(64):
        put(codes, i, larger(half_away(get(x, i) * k) + 1, 0))
    for i in at_once(16):
        four = part(codes, i, 4)
        low = get(four, 0) | get(four, 1) << 2
        put(out[QS : QS + 16], i, low | get(four, 2) << 4 | get(four, 3) << 6)


FORMAT = BlockFormat(
    name="q2_0", id=42, block_size=64, group=64, dtype=DTYPE, zero=1,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE), fallback="q4_0",
)  # fmt: skip
