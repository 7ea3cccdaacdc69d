"""iq3_s: 3.4375 bits a weight, ``value = d * (2 s + 1) * ±GRID``; 256 weights, 32 share s.

struct block_iq3_s { ggml_half d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32];
                     uint8_t scales[4]; }

byte       0 1 | 2 … 65 | 66 … 73 | 74 … 105 | 106 … 109
           d   | qs     | qh      | signs    | scales
qs[k]      low eight bits of the row of GRID (4 magnitudes) for weights 4 k … 4 k + 3
qh[r]      bit b = ninth bit of the row of k = 8 r + b
signs[j]   signs of weights 8 j … 8 j + 7, the least significant bit first (1 is minus)
scales[t]  bits 7654 = s of weights 64 t + 32 …,  bits 3210 = s of weights 64 t …

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq2_iq3.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, entry, half, nibbles, offset_of, signed, u8
from ._grids import grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", (64,)), ("qh", "u1", (8,)), ("signs", "u1", (32,)), ("scales", "u1", (4,))]
)
D, QS, QH, SIGNS, SCALES = (offset_of(DTYPE, f) for f in ("d", "qs", "qh", "signs", "scales"))
GRID = grid("iq3_s")  # [512, 4]


def unpack(blocks: Blocks) -> Parts:
    rows = blocks["qs"] | bits(blocks["qh"]).astype(np.uint16) << 8
    codes = signed(GRID[rows].reshape(*blocks.shape, 256), bits(blocks["signs"]))
    d = blocks["d"].astype(np.float32)[..., None]
    s = nibbles(blocks["scales"], run=1).astype(np.float32)
    return Parts(codes, d * (s * 2 + 1), None)


def code(block: Bytes, i: int) -> int:
    row = u8(block, QS + i // 4) | (u8(block, QH + i // 32) >> i // 4 % 8 & 1) << 8
    value = entry(GRID, row, i % 4)
    minus = u8(block, SIGNS + i // 8) >> i % 8 & 1
    return -value if minus else value


def sub(block: Bytes, g: int) -> int:
    return (u8(block, SCALES + g // 2) >> g % 2 * 4 & 15) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g))


FORMAT = BlockFormat(
    name="iq3_s", id=21, block_size=256, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub),
    imatrix="optional", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
