"""iq2_xxs: 2.0625 bits a weight, ``value = d * (s + 1/2) / 4 * ±GRID``; 256 weights, 32 share s.

struct block_iq2_xxs { ggml_half d; uint16_t qs[32]; }

byte   0 1 | 2 … 65
       d   | qs
qs     8 bytes a run of 32 weights: four bytes that each name a row of GRID (8 magnitudes), then
       a 32-bit word:  bits 31…28 = s,  27…21, 20…14, 13…7, 6…0 = sign indices of rows 3, 2, 1, 0
A sign index gives 7 signs, the least significant bit first (1 is minus); the eighth makes the
number of minus signs even.

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq2_iq3.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, entry, half, offset_of, sign_bits, signed, u8, u32
from ._grids import SIGNS, grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("qs", "<u2", (32,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")
GRID = grid("iq2_xxs")  # [256, 8]
SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def unpack(blocks: Blocks) -> Parts:
    runs = blocks["qs"].reshape(*blocks.shape, 8, 4).astype(np.uint32)
    rows = np.stack([runs[..., 0] & 255, runs[..., 0] >> 8, runs[..., 1] & 255, runs[..., 1] >> 8], -1)
    word = runs[..., 2] | runs[..., 3] << 16
    minus = bits(SIGNS[word[..., None] >> SHIFTS & 127]).reshape(*blocks.shape, 256)
    codes = signed(GRID[rows].reshape(*blocks.shape, 256), minus)
    d = blocks["d"].astype(np.float32)[..., None]
    s = (word >> 28).astype(np.float32)
    return Parts(codes, d * (s + np.float32(0.5)) * np.float32(0.25), None)


def code(block: Bytes, i: int) -> int:
    run = QS + i // 32 * 8
    row = i % 32 // 8
    value = entry(GRID, u8(block, run + row), i % 8)
    minus = sign_bits(u32(block, run + 4) >> 7 * row & 127) >> i % 8 & 1
    return -value if minus else value


def sub(block: Bytes, g: int) -> int:
    return (u32(block, QS + g * 8 + 4) >> 28) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g)) * np.float32(0.125)


FORMAT = BlockFormat(
    name="iq2_xxs", id=16, block_size=256, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.125),
    imatrix="required", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
