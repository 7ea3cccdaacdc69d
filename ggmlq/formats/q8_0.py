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
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Floats, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(blocks["qs"], f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return i8(block, QS + i)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    d = np.abs(x).max(axis=-1) / np.float32(127)
    blocks = np.empty(x.shape[:-1], DTYPE)
    blocks["d"] = d
    blocks["qs"] = half_away(x * inverse(d))
    return blocks


FORMAT = BlockFormat(
    name="q8_0", id=8, block_size=32, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=pack, fallback="f16",
)  # fmt: skip
