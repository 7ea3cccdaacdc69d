"""iq1_m: 1.75 bits a weight, ``value = d * (2 s + 1) * (GRID ± 1/8)``; 256 weights, 16 share s.

    struct block_iq1_m { uint8_t qs[32]; uint8_t qh[16]; uint8_t scales[8]; }

    byte    0 … 31 | 32 … 47 | 48 … 55
            qs     | qh      | scales
    qs[k]   low eight bits of the row of GRID (8 of -1, 0, 1) for weights 8 k … 8 k + 7
    qh      a nibble for each k, low nibble first:  bit 3 = minus 1/8 instead of plus,
            bits 210 = high three bits of the row
    scales  four 16-bit words:  bits 15…12 = a quarter of d (a half; word 0 has its lowest bits),
            11…9, 8…6, 5…3, 2…0 = s of the four runs of 16 weights, the first in the low bits

The code is 8 (GRID ± 1/8), an integer, and the scale an eighth: exact, since 8 is a power of two.

Its encoder searches the code book and is compiled code alone: ``ggmlq/cpu/encode/iq1.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._bits import entry, half_value, nibbles, offset_of, u8, u16
from ._grids import grid
from .format import BlockFormat, Blocks, Bytes, Floats, Parts, Scales

DTYPE = np.dtype([("qs", "u1", (32,)), ("qh", "u1", (16,)), ("scales", "u1", (8,))])
QS, QH, SCALES = (offset_of(DTYPE, field) for field in ("qs", "qh", "scales"))
GRID = grid("iq1")  # [2048, 8]
SHIFTS = np.array([0, 3, 6, 9], np.uint16)


def unpack(blocks: Blocks) -> Parts:
    qh = nibbles(blocks["qh"], run=1)
    rows = blocks["qs"] | (qh & 7).astype(np.uint16) << 8
    eighth = np.where(qh & 8, np.int8(-1), np.int8(1))
    codes = GRID[rows] * np.int8(8) + eighth[..., None]
    s = (_scale_words(blocks)[..., None] >> SHIFTS & 7).reshape(*blocks.shape, 16).astype(np.float32)
    scale = _d(blocks)[..., None] * (s * 2 + 1) * np.float32(0.125)
    return Parts(codes.reshape(*blocks.shape, 256), scale, None)


def _scale_words(blocks: Blocks) -> NDArray[np.uint16]:
    return np.ascontiguousarray(blocks["scales"]).view("<u2")


def _d(blocks: Blocks) -> Floats:
    top = _scale_words(blocks) & 0xF000
    d = top[..., 0] >> 12 | top[..., 1] >> 8 | top[..., 2] >> 4 | top[..., 3]
    return d.view(np.float16).astype(np.float32)


def forbidden(blocks: Blocks) -> NDArray[np.bool_]:
    return ~np.isfinite(_d(blocks))


def code(block: Bytes, i: int) -> int:
    k = i // 8
    qh = u8(block, QH + k // 2) >> k % 2 * 4 & 15
    row = u8(block, QS + k) | (qh & 7) << 8
    return entry(GRID, row, i % 8) * 8 + 1 - (qh >> 3) * 2


def d_bits(block: Bytes) -> int:
    d = u16(block, SCALES) >> 12 | u16(block, SCALES + 2) >> 12 << 4
    return d | u16(block, SCALES + 4) >> 12 << 8 | u16(block, SCALES + 6) >> 12 << 12


def sub(block: Bytes, g: int) -> int:
    return (u16(block, SCALES + g // 4 * 2) >> g % 4 * 3 & 7) * 2 + 1


def scale(block: Bytes, g: int) -> np.float32:
    return half_value(d_bits(block)) * np.float32(sub(block, g)) * np.float32(0.125)


FORMAT = BlockFormat(
    name="iq1_m", id=29, block_size=256, group=16, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, unit=0.125, d=d_bits),
    forbidden=forbidden, imatrix="optional", compiled_only=True, fallback="iq4_nl",
)  # fmt: skip
