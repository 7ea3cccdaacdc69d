"""q6_K: 6.5625 bits a weight, ``value = d * sc * (q - 32)``; 256 weights, 16 share sc.

struct block_q6_K { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; ggml_half d; }

byte   0 … 127 | 128 … 191 | 192 … 207 | 208 209
       ql      | qh        | scales    | d
ql     64 bytes serve 128 weights, the low four bits of each: bits 7654 of byte j = weight
       j + 64, bits 3210 = weight j
qh     32 bytes serve 128 weights, the high two bits of each: byte j holds
       bits 76 = weight j + 96,  54 = j + 64,  32 = j + 32,  10 = j
"""

from __future__ import annotations

import numpy as np

from ._bits import half, i8, nibbles, offset_of, pair_bits, pairs, u8
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])
QL, QH, SCALES, D = (offset_of(DTYPE, field) for field in ("ql", "qh", "scales", "d"))


def unpack(blocks: Blocks) -> Parts:
    stored = nibbles(blocks["ql"], run=64) | pairs(blocks["qh"]) << 4
    d = blocks["d"].astype(np.float32)[..., None]
    return Parts(stored.view(np.int8) - np.int8(32), d * blocks["scales"], None)


def code(block: Bytes, i: int) -> int:
    low = u8(block, QL + i // 128 * 64 + i % 64) >> i % 128 // 64 * 4 & 15
    return (low | pair_bits(block, QH, i) << 4) - 32


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(i8(block, SCALES + g))


FORMAT = BlockFormat(
    name="q6_K", id=14, block_size=256, group=16, dtype=DTYPE, zero=32,
    unpack=unpack, code=code, scale=scale, imatrix="optional",
)  # fmt: skip
