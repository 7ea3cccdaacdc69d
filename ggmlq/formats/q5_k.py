"""q5_K: 5.5 bits a weight, ``value = d * sc * q - dmin * m``; 256 weights, 32 share sc and m.

struct block_q5_K { union { struct { ggml_half d, dmin; }; ggml_half2 dm; };
                    uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; }

byte    0 1 | 2 3  | 4 … 15 | 16 … 47 | 48 … 175
        d   | dmin | scales | qh      | qs
scales  sc and m of the runs 0 … 7 of 32 weights, packed as in q4_K (picture in q4_k.py)
qs      32 bytes serve 64 weights: bits 7654 of byte j = low four bits of weight j + 32,
        bits 3210 = of weight j
qh      bit i / 32 of qh[i % 32] = fifth bit of weight i

Its encoder, in ``_kquants.py``: ``fit_runs`` finds scales and minima, ``six_bits`` stores them as sc and m,
``recode_runs`` chooses q for what was stored; ``_search.py`` holds the searches.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, half, k_min, k_scale, k_scales, nibbles, offset_of, u8
from ._kquants import fit_runs, recode_runs, six_bits
from ._packing import put_bits, put_half, put_k_scales, put_nibbles
from ._program import Packer, Tile, floats, get, put, small, where
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
)
D, DMIN, SCALES, QH, QS = (offset_of(DTYPE, f) for f in ("d", "dmin", "scales", "qh", "qs"))


def unpack(blocks: Blocks) -> Parts:
    lead = blocks.shape
    fifth = bits(blocks["qh"]).reshape(*lead, 32, 8).swapaxes(-1, -2).reshape(*lead, 256)
    codes = (nibbles(blocks["qs"], run=32) | fifth << 4).view(np.int8)
    sc, m = k_scales(blocks["scales"])
    d = blocks["d"].astype(np.float32)[..., None]
    dmin = blocks["dmin"].astype(np.float32)[..., None]
    return Parts(codes, d * sc, dmin * m)


def code(block: Bytes, i: int) -> int:
    low = u8(block, QS + i // 64 * 32 + i % 32) >> i % 64 // 32 * 4 & 15
    return low | (u8(block, QH + i % 32) >> i // 32 & 1) << 4


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
        first, step, steps = np.float32(-0.5), np.float32(0.1), 15
    else:
        first, step, steps = np.float32(-0.9), np.float32(0.05), 36
    fit_runs(x, importance, codes, scales, lows, sums, 31, first, step, steps)
    sc, m = small(x, 8), small(x, 8)
    d = six_bits(scales, sums, sc, importance is not None)
    dmin = six_bits(lows, sums, m, importance is not None)
    for j in range(8):
        put(sc, j, where(get(sc, j) < 63, get(sc, j), 63))
        put(m, j, where(get(m, j) < 63, get(m, j), 63))
    put_half(out, D, d)
    put_half(out, DMIN, dmin)
    put_k_scales(out, SCALES, sc, m)
    recode_runs(x, codes, out, SCALES, d, dmin, 31)
    put_bits(out, QH, codes, 4)
    put_nibbles(out, QS, codes, 256, 32)


FORMAT = BlockFormat(
    name="q5_K", id=13, block_size=256, group=32, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, scales=Scales(sub, low=low),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="q5_1",
)  # fmt: skip
