"""iq2_s: 2.5625 bits a weight, ``value = d * (s + 1/2) / 4 * ±GRID``; 256 weights, 16 share s.

struct block_iq2_s { ggml_half d; uint8_t qs[64]; uint8_t qh[8]; uint8_t scales[8]; }

byte       0 1 | 2 … 33     | 34 … 65     | 66 … 73 | 74 … 81
           d   | qs[0 … 31] | qs[32 … 63] | qh      | scales
qs[k]      low eight bits of the row of GRID for weights 8 k … 8 k + 7
qs[32 + k] their eight signs, the least significant bit first (1 is minus)
qh[r]      high two bits of the rows of k = 4 r + 3, 4 r + 2, 4 r + 1, 4 r in bits 76, 54, 32, 10
scales[r]  bits 7654 = s of weights 32 r + 16 …,  bits 3210 = s of weights 32 r …

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq2_iq3.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, entry, half, nibbles, offset_of, signed, u8
from ._grids import grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (64,)), ("qh", "u1", (8,)), ("scales", "u1", (8,))])
D, QS, QH, SCALES = (offset_of(DTYPE, field) for field in ("d", "qs", "qh", "scales"))
GRID = grid("iq2_s")  # [1024, 8]
SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def unpack(blocks: Blocks) -> Parts:
    low, minus = blocks["qs"][..., :32], bits(blocks["qs"][..., 32:])
    high = (blocks["qh"][..., None] >> SHIFTS & 3).reshape(*blocks.shape, 32)
    rows = low | high.astype(np.uint16) << 8
    codes = signed(GRID[rows].reshape(*blocks.shape, 256), minus)
    d = blocks["d"].astype(np.float32)[..., None]
    s = nibbles(blocks["scales"], run=1).astype(np.float32)
    return Parts(codes, d * (s + np.float32(0.5)) * np.float32(0.25), None)


def code(block: Bytes, i: int) -> int:
    k = i // 8
    row = u8(block, QS + k) | (u8(block, QH + k // 4) >> k % 4 * 2 & 3) << 8
    value = entry(GRID, row, i % 8)
    minus = u8(block, QS + 32 + k) >> i % 8 & 1
    return -value if minus else value


def sub(block: Bytes, g: int) -> int:
    return (u8(block, SCALES + g // 2) >> g % 2 * 4 & 15) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g)) * np.float32(0.125)


FORMAT = BlockFormat(
    name="iq2_s", id=22, block_size=256, group=16, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.125),
    imatrix="optional", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
