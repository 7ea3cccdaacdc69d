"""q4_K: 4.5 bits a weight, ``value = d * sc * q - dmin * m``; 256 weights, 32 share sc and m.

struct block_q4_K { union { struct { ggml_half d, dmin; }; ggml_half2 dm; };
                    uint8_t scales[12]; uint8_t qs[128]; }

byte    0 1 | 2 3  | 4 … 15 | 16 … 143
        d   | dmin | scales | qs
scales  eight 6-bit sc (s) and eight 6-bit m, for the runs 0 … 7 of 32 weights; k = 0 … 3
        byte k       bits 76 = high two of s(4 + k),  543210 = s(k)
        byte 4 + k   bits 76 = high two of m(4 + k),  543210 = m(k)
        byte 8 + k   bits 7654 = low four of m(4 + k),  3210 = low four of s(4 + k)
qs      32 bytes serve 64 weights: bits 7654 of byte j = q of weight j + 32, bits 3210 = weight j

Its encoder, in ``_kquants.py``: ``fit_runs`` finds scales and minima, ``six_bits`` stores them as sc and m,
``recode_runs`` chooses q for what was stored; ``_search.py`` holds the searches.
"""

from __future__ import annotations

import numpy as np

from ._bits import half, k_min, k_scale, k_scales, nibbles, offset_of, u8
from ._kquants import fit_runs, recode_runs, six_bits
from ._packing import put_half, put_k_scales, put_nibbles
from ._program import Packer, Tile, floats, small
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (128,))])
D, DMIN, SCALES, QS = (offset_of(DTYPE, field) for field in ("d", "dmin", "scales", "qs"))


def unpack(blocks: Blocks) -> Parts:
    sc, m = k_scales(blocks["scales"])
    d = blocks["d"].astype(np.float32)[..., None]
    dmin = blocks["dmin"].astype(np.float32)[..., None]
    return Parts(nibbles(blocks["qs"], run=32).view(np.int8), d * sc, dmin * m)


def code(block: Bytes, i: int) -> int:
    return u8(block, QS + i // 64 * 32 + i % 32) >> i % 64 // 32 * 4 & 15


def sub(block: Bytes, g: int) -> int:
    return k_scale(block, SCALES, g)


def low(block: Bytes, g: int) -> int:
    return k_min(block, SCALES, g)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g))


def offset(block: Bytes, g: int) -> np.float32:
    return half(block, DMIN) * np.float32(low(block, g))


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes = small(x, 256)
    scales, lows, sums = floats(x, 8), floats(x, 8), floats(x, 8)
    if importance is None:
        first, step, steps = np.float32(-1), np.float32(0.1), 20
    else:
        first, step, steps = np.float32(-0.9), np.float32(0.05), 36
    fit_runs(x, importance, codes, scales, lows, sums, 15, first, step, steps)
    sc, m = small(x, 8), small(x, 8)
    d = six_bits(scales, sums, sc, importance is not None)
    dmin = six_bits(lows, sums, m, importance is not None)
    put_half(out, D, d)
    put_half(out, DMIN, dmin)
    put_k_scales(out, SCALES, sc, m)
    recode_runs(x, codes, out, SCALES, d, dmin, 15)
    put_nibbles(out, QS, codes, 256, 32)


FORMAT = BlockFormat(
    name="q4_K", id=12, block_size=256, group=32, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, scales=Scales(sub, low=low),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="q5_0",
)  # fmt: skip
