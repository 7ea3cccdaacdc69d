"""iq4_xs: 4.25 bits a weight, ``value = d * (ls - 32) * IQ4[q]``; 256 weights share d, 32 share ls.

struct block_iq4_xs { ggml_half d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; }

byte   0 1 | 2 3      | 4 … 7    | 8 … 135
       d   | scales_h | scales_l | qs
ls of run g (32 weights), 6 bits:
    low four bits   scales_l[g / 2], low nibble for even g, high nibble for odd g
    high two bits   scales_h, bits 2g + 1 and 2g
qs     16 bytes a run: bits 7654 of byte j = q of its weight j + 16, bits 3210 = weight j

Its encoder: ``fit_levels`` and ``put_nearest`` of ``_levels.py`` find scales and codes, ``_weigh.py`` says
what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import half, level, nibble, nibbles, offset_of, u8, u16
from ._extremes import extreme
from ._levels import fit_levels, put_nearest
from ._packing import put_half, put_nibbles
from ._program import (
    Packer,
    Tile,
    at_once,
    clamp,
    floats,
    get,
    nearest,
    part,
    put,
    real,
    small,
    to_half,
    where,
)
from ._tables import IQ4
from ._weigh import power, square, weigh
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))])
D, SCALES_H, SCALES_L, QS = (offset_of(DTYPE, f) for f in ("d", "scales_h", "scales_l", "qs"))
HIGH_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


def unpack(blocks: Blocks) -> Parts:
    low = nibbles(blocks["scales_l"], run=1)
    high = blocks["scales_h"][..., None] >> HIGH_SHIFTS & 3
    ls = (low | high << 4).astype(np.float32) - np.float32(32)
    d = blocks["d"].astype(np.float32)[..., None]
    return Parts(IQ4[nibbles(blocks["qs"])], d * ls, None)


def code(block: Bytes, i: int) -> int:
    q = nibble(block, QS + i // 32 * 16, i % 32)
    return level(IQ4, q)


def sub(block: Bytes, g: int) -> int:
    low = u8(block, SCALES_L + g // 2) >> g % 2 * 4 & 15
    high = u16(block, SCALES_H) >> 2 * g & 3
    return low | high << 4


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g) - 32)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    scales, ls, codes = floats(x, 8), small(x, 8), small(x, 256)
    fit_runs(x, importance, scales)
    d = extreme(scales, 8) / np.float32(-32)
    inverse = where(d != 0, np.float32(1) / d, np.float32(0))
    for g in at_once(8):
        code = clamp(nearest(inverse * get(scales, g)), -32, 31)
        scale = d * real(code)
        k = where(scale != 0, np.float32(1) / scale, np.float32(0))
        put_nearest(part(x, g, 32), part(codes, g, 32), 32, k)
        put(ls, g, code + 32)
    put_half(out, D, to_half(d))
    put_scales(out, ls)
    put_nibbles(out, QS, codes, 256, 16)


def fit_runs(x: Tile, importance: Tile | None, scales: Tile) -> None:
    mean = power(x, 256) * np.float32(2 / 256)
    for g in at_once(8):
        run = part(x, g, 32)
        w = floats(run, 32)
        if importance is None:
            square(w, run, 32)
        else:
            weigh(w, run, part(importance, g, 32), 32, mean)
        put(scales, g, fit_levels(run, w, 32))


def put_scales(out: Tile, ls: Tile) -> None:
    for i in range(4):
        put(out, SCALES_L + i, get(ls, 2 * i) & 15 | (get(ls, 2 * i + 1) & 15) << 4)
    for i in range(2):
        high = get(ls, 4 * i) >> 4 | get(ls, 4 * i + 1) >> 4 << 2
        high = high | get(ls, 4 * i + 2) >> 4 << 4 | get(ls, 4 * i + 3) >> 4 << 6
        put(out, SCALES_H + i, high)


FORMAT = BlockFormat(
    name="iq4_xs", id=23, block_size=256, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, zero=32),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="iq4_nl",
)  # fmt: skip
