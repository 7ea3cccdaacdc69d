"""tq2_0: 2.0625 bits a weight, ``value = d * (q - 1)`` with q = 0, 1, 2; 256 weights share d.

struct block_tq2_0 { uint8_t qs[64]; ggml_half d; }

byte   0      1      …  63     | 64 65
       qs[0]  qs[1]  …  qs[63] | d
qs     32 bytes serve 128 weights: byte j of such a half holds
       bits 76 = q of weight j + 96,  54 = j + 64,  32 = j + 32,  10 = j
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, offset_of, pair_bits, pairs
from ._extremes import largest_of_256
from ._packing import put_half, put_pairs
from ._program import Packer, Tile, at_once, get, put, small, to_half
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("qs", "u1", (64,)), ("d", "<f2")])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(pairs(blocks["qs"]).view(np.int8) - np.int8(1), f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return pair_bits(block, QS, i) - 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    codes, d = small(x, 256), largest_of_256(x)
    k = inverse(d)
    for i in at_once(256):
        put(codes, i, half_away(get(x, i) * k) + 1)
    put_pairs(out, QS, codes)
    put_half(out, D, to_half(d))


FORMAT = BlockFormat(
    name="tq2_0", id=35, block_size=256, group=256, dtype=DTYPE, zero=1,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE), fallback="q4_0",
)  # fmt: skip
