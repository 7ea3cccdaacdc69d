"""q8_0: 8.5 bits a weight, ``value = d * q``; 32 weights share d.

    struct block_q8_0 { ggml_half d; int8_t qs[32]; }

    byte   0 1 | 2      3      …  33
           d   | qs[0]  qs[1]  …  qs[31]

Also what llama.cpp's CPU backend turns activations into before it multiplies them with q4_0,
q5_0, q8_0 and the like.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, i8, offset_of
from ._extremes import largest
from ._packing import put_half
from ._program import Packer, Tile, at_once, get, put, to_half
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(blocks["qs"], f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return i8(block, QS + i)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    d = largest(x, 32) / np.float32(127)
    k = inverse(d)
    put_half(out, D, to_half(d))
    for i in at_once(32):
        put(out[QS : QS + 32], i, half_away(get(x, i) * k))


FORMAT = BlockFormat(
    name="q8_0", id=8, block_size=32, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE), fallback="f16",
)  # fmt: skip
