"""nvfp4: 4.5 bits a weight, ``value = u(d[g]) * FP4[q]``; 64 weights, 16 share a scale.

    struct block_nvfp4 { uint8_t d[4]; uint8_t qs[32]; }

    byte   0 … 3       | 4      5      …  35
           d[0] … d[3] | qs[0]  qs[1]  …  qs[31]
    qs     8 bytes a group: bits 7654 of byte j = q of its weight j + 8, bits 3210 = weight j
    d[g]   UE4M3, bits 6543 = exponent (bias 7), bits 210 = mantissa; bit 7 is ignored

u() is half the value of the UE4M3 number, because FP4 holds twice the e2m1 values. The byte 0x7F
(NaN in the standard) counts as 0; 0xFF, whose bit 7 should not be set, as 240.

Model files keep one more scale per tensor, in a tensor of its own. Without it the encoder has few
scales for small weights: below a largest weight of 0.094 in a group the scale is subnormal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._bits import level, nibbles, offset_of, u8
from ._extremes import largest
from ._levels import nearest_fp4
from ._program import Packer, Tile, Vector, at_once, bits, clamp, entry, get, part, put, where
from ._round import truncate
from ._tables import FP4
from .format import BlockFormat, Blocks, Bytes, Floats, Parts, Scales

DTYPE = np.dtype([("d", "u1", (4,)), ("qs", "u1", (32,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def _half_ue4m3() -> Floats:
    byte = np.arange(256) & 127
    exponent, mantissa = byte >> 3, byte & 7
    value: NDArray[np.float64] = np.ldexp(mantissa + 8.0 * (exponent > 0), np.maximum(exponent, 1) - 11)
    value[127] = 0
    return value.astype(np.float32)


UE4M3 = _half_ue4m3()


def unpack(blocks: Blocks) -> Parts:
    return Parts(FP4[nibbles(blocks["qs"], run=8)], UE4M3[blocks["d"]], None)


def index(block: Bytes, i: int) -> int:
    return u8(block, QS + i // 16 * 8 + i % 8) >> i % 16 // 8 * 4 & 15


def code(block: Bytes, i: int) -> int:
    return level(FP4, index(block, i))


def sub(block: Bytes, g: int) -> int:
    return u8(block, D + g)


def scale(block: Bytes, g: int) -> np.float32:
    return np.float32(UE4M3[sub(block, g)])


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    for g in at_once(4):
        group, codes = part(x, g, 16), part(out[QS : QS + 32], g, 8)
        byte = ue4m3(largest(group, 16) / np.float32(6))
        put(out[D : D + 4], g, byte)
        scale = entry(UE4M3, byte)
        for i in at_once(8):
            low, high = nearest_fp4(get(group[:8], i), scale), nearest_fp4(get(group[8:], i), scale)
            put(codes, i, low | high << 4)


def ue4m3(v: Vector) -> Vector:
    """Bytes of floats that are not negative, ties rounded up, as ggml does.

    ggml gives the whole binade from 248 on (256 to 448 after rounding) the largest byte, 0x7E.
    """
    normal = (bits(v) + (1 << 19) >> 20) - (120 << 3)  # float bias 127 to bias 7; a carry moves the exponent
    subnormal = clamp(truncate(v * np.float32(512) + np.float32(0.5)), 0, 7)
    byte = where(bits(v) >> 23 > 120, normal, subnormal)
    return where(byte < 15 << 3, byte, 0x7E)


FORMAT = BlockFormat(
    name="nvfp4", id=40, block_size=64, group=16, dtype=DTYPE,
    unpack=unpack, code=code, index=index, scale=scale, scales=Scales(sub, table=UE4M3),
    pack=Packer(encode, DTYPE),
)  # fmt: skip
