"""iq1_s: 1.5625 bits a weight, ``value = d * (2 s + 1) * (GRID ± 1/8)``; 256 weights, 32 share s.

    struct block_iq1_s { ggml_half d; uint8_t qs[32]; uint16_t qh[8]; }

    byte   0 1 | 2 … 33 | 34 … 49
           d   | qs     | qh
    qs[k]  low eight bits of the row of GRID (8 of -1, 0, 1) for weights 8 k … 8 k + 7
    qh[r]  for weights 32 r … 32 r + 31:  bit 15 = minus 1/8 instead of plus,  14…12 = s,
           11…9, 8…6, 5…3, 2…0 = high three bits of the rows of k = 4 r + 3, 4 r + 2, 4 r + 1, 4 r

The code is 8 (GRID ± 1/8), an integer, and the scale an eighth: exact, since 8 is a power of two.

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq1.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import entry, half, offset_of, u8, u16
from ._grids import grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (32,)), ("qh", "<u2", (8,))])
D, QS, QH = (offset_of(DTYPE, field) for field in ("d", "qs", "qh"))
GRID = grid("iq1")  # [2048, 8]
SHIFTS = np.array([0, 3, 6, 9], np.uint16)


def unpack(blocks: Blocks) -> Parts:
    qh = blocks["qh"]
    high = (qh[..., None] >> SHIFTS & 7).reshape(*blocks.shape, 32)
    rows = blocks["qs"] | high << 8
    eighth = np.where(qh & 0x8000, np.int8(-1), np.int8(1))
    codes = GRID[rows].reshape(*blocks.shape, 8, 32) * np.int8(8) + eighth[..., None]
    d = blocks["d"].astype(np.float32)[..., None]
    s = (qh >> 12 & 7).astype(np.float32)
    return Parts(codes.reshape(*blocks.shape, 256), d * (s * 2 + 1) * np.float32(0.125), None)


def code(block: Bytes, i: int) -> int:
    k = i // 8
    qh = u16(block, QH + i // 32 * 2)
    row = u8(block, QS + k) | (qh >> k % 4 * 3 & 7) << 8
    return entry(GRID, row, i % 8) * 8 + 1 - (qh >> 15) * 2


def sub(block: Bytes, g: int) -> int:
    return (u16(block, QH + g * 2) >> 12 & 7) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g)) * np.float32(0.125)


FORMAT = BlockFormat(
    name="iq1_s", id=19, block_size=256, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.125),
    imatrix="required", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
