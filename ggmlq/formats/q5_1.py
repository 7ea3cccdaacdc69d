"""q5_1: 6 bits a weight, ``value = d * q + m``; 32 weights share d and m.

    struct block_q5_1 { union { struct { ggml_half d, m; }; ggml_half2 dm; };
                        uint8_t qh[4]; uint8_t qs[16]; }

    byte   0 1 | 2 3 | 4 … 7 | 8      9      …  23
           d   | m   | qh    | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 7654 = low four bits of weight j + 16,  bits 3210 = those of weight j
    qh     32 bits, least significant first: bit i = fifth bit of weight i

m is the smallest weight of the block; the offset of the common formula is -m.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, f32, half, nibble, nibbles, offset_of, pack_nibbles, u8
from ._round import inverse, lowest, truncate
from .format import BlockFormat, Blocks, Bytes, Floats, Parts

DTYPE = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
D, M, QH, QS = (offset_of(DTYPE, field) for field in ("d", "m", "qh", "qs"))


def unpack(blocks: Blocks) -> Parts:
    stored = nibbles(blocks["qs"]) | bits(blocks["qh"]) << 4
    return Parts(stored.view(np.int8), f32(blocks["d"]), -f32(blocks["m"]))


def code(block: Bytes, i: int) -> int:
    fifth = u8(block, QH + i // 8) >> i % 8 & 1
    return nibble(block, QS, i) | fifth << 4


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def offset(block: Bytes, g: int) -> np.float32:
    return -half(block, M)


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    low = lowest(x)
    d = (x.max(axis=-1) - low + np.float32(0)) / np.float32(31)  # +0: never -0.0
    q = truncate((x - low[..., None]) * inverse(d) + np.float32(0.5)).astype(np.uint8)
    blocks = np.empty(x.shape[:-1], DTYPE)
    blocks["d"] = d
    blocks["m"] = low
    blocks["qh"] = np.packbits(q >> 4 & 1, axis=-1, bitorder="little")
    blocks["qs"] = pack_nibbles(q & np.uint8(15))
    return blocks


FORMAT = BlockFormat(
    name="q5_1", id=7, block_size=32, group=32, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, pack=pack, imatrix="optional",
)  # fmt: skip
