"""iq3_xxs: 3.0625 bits a weight, ``value = d * (s + 1/2) / 2 * ±GRID``; 256 weights, 32 share s.

struct block_iq3_xxs { ggml_half d; uint8_t qs[96]; }

byte     0 1 | 2 … 65     | 66 … 97
         d   | qs[0 … 63] | qs[64 … 95]
qs[k]    row of GRID (4 magnitudes) for weights 4 k … 4 k + 3
qs[64 + 4 r …]  a 32-bit word for weights 32 r … 32 r + 31:  bits 31…28 = s,
         27…21, 20…14, 13…7, 6…0 = sign indices of their last, third, second, first eight
A sign index gives 7 signs, the least significant bit first (1 is minus); the eighth makes the
number of minus signs even.

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq2_iq3.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, entry, half, offset_of, sign_bits, signed, u8, u32
from ._grids import SIGNS, grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (96,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")
WORDS = QS + 64
GRID = grid("iq3_xxs")  # [256, 4]
SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def unpack(blocks: Blocks) -> Parts:
    rows = blocks["qs"][..., :64]
    word = np.ascontiguousarray(blocks["qs"][..., 64:]).view("<u4")
    minus = bits(SIGNS[word[..., None] >> SHIFTS & 127]).reshape(*blocks.shape, 256)
    codes = signed(GRID[rows].reshape(*blocks.shape, 256), minus)
    d = blocks["d"].astype(np.float32)[..., None]
    s = (word >> 28).astype(np.float32)
    return Parts(codes, d * (s + np.float32(0.5)) * np.float32(0.5), None)


def code(block: Bytes, i: int) -> int:
    value = entry(GRID, u8(block, QS + i // 4), i % 4)
    index = u32(block, WORDS + i // 32 * 4) >> 7 * (i % 32 // 8) & 127
    return -value if sign_bits(index) >> i % 8 & 1 else value


def sub(block: Bytes, g: int) -> int:
    return (u32(block, WORDS + g * 4) >> 28) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g)) * np.float32(0.25)


FORMAT = BlockFormat(
    name="iq3_xxs", id=18, block_size=256, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.25),
    imatrix="optional", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
