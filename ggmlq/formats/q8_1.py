"""q8_1: 9 bits a weight, ``value = d * q``; 32 values share d, and s holds their sum.

    struct block_q8_1 { union { struct { ggml_half d, s; }; ggml_half2 ds; }; int8_t qs[32]; }

    byte   0 1 | 2 3 | 4      5      …  35
           d   | s   | qs[0]  qs[1]  …  qs[31]

For activations, never in files. s lets a kernel handle the constant of the other operand's codes
once a block: Σ (q4 - 8) q8 d8 = Σ q4 q8 d8 - 8 s. It has two meanings in llama.cpp. Here, as in
ggml's C code, s = half(d * Σ qs) with d not yet rounded; the CUDA backend stores half(Σ x) of
the floats themselves.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, i8, offset_of
from ._extremes import largest
from ._packing import put_half, sum_of_bytes
from ._program import Packer, Tile, at_once, get, put, real, to_half
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", (32,))])
D, S, QS = (offset_of(DTYPE, field) for field in ("d", "s", "qs"))


def unpack(blocks: Blocks) -> Parts:
    return Parts(blocks["qs"], f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return i8(block, QS + i)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    codes, d = out[QS : QS + 32], largest(x, 32) / np.float32(127)
    k = inverse(d)
    for i in at_once(32):
        put(codes, i, half_away(get(x, i) * k))
    put_half(out, D, to_half(d))
    put_half(out, S, to_half(real(sum_of_bytes(codes, 32)) * d))


FORMAT = BlockFormat(
    name="q8_1", id=9, block_size=32, group=32, dtype=DTYPE, half2="ds",
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE),
)  # fmt: skip
