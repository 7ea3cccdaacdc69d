"""iq2_xs: 2.3125 bits a weight, ``value = d * (s + 1/2) / 4 * ±GRID``; 256 weights, 16 share s.

struct block_iq2_xs { ggml_half d; uint16_t qs[32]; uint8_t scales[8]; }

byte       0 1 | 2 … 65 | 66 … 73
           d   | qs     | scales
qs[k]      for weights 8 k … 8 k + 7:  bits 15…9 = sign index,  8…0 = row of GRID (8 magnitudes)
scales[r]  bits 7654 = s of weights 32 r + 16 …,  bits 3210 = s of weights 32 r …
A sign index gives 7 signs, the least significant bit first (1 is minus); the eighth makes the
number of minus signs even.

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq2_iq3.py``.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, entry, half, nibbles, offset_of, sign_bits, signed, u8, u16
from ._grids import SIGNS, grid
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("qs", "<u2", (32,)), ("scales", "u1", (8,))])
D, QS, SCALES = (offset_of(DTYPE, field) for field in ("d", "qs", "scales"))
GRID = grid("iq2_xs")  # [512, 8]


def unpack(blocks: Blocks) -> Parts:
    qs = blocks["qs"]
    minus = bits(SIGNS[qs >> 9][..., None]).reshape(*blocks.shape, 256)
    codes = signed(GRID[qs & 511].reshape(*blocks.shape, 256), minus)
    d = blocks["d"].astype(np.float32)[..., None]
    s = nibbles(blocks["scales"], run=1).astype(np.float32)
    return Parts(codes, d * (s + np.float32(0.5)) * np.float32(0.25), None)


def code(block: Bytes, i: int) -> int:
    q = u16(block, QS + i // 8 * 2)
    value = entry(GRID, q & 511, i % 8)
    return -value if sign_bits(q >> 9) >> i % 8 & 1 else value


def sub(block: Bytes, g: int) -> int:
    return (u8(block, SCALES + g // 2) >> g % 2 * 4 & 15) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g)) * np.float32(0.125)


FORMAT = BlockFormat(
    name="iq2_xs", id=17, block_size=256, group=16, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.125),
    imatrix="required", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
