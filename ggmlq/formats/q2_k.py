"""q2_K: 2.625 bits a weight, ``value = d * sc * q - dmin * m``; 256 weights, 16 share sc and m.

struct block_q2_K { uint8_t scales[16]; uint8_t qs[64];
                    union { struct { ggml_half d, dmin; }; ggml_half2 dm; }; }

byte       0 … 15 | 16 … 79 | 80 81 | 82 83
           scales | qs      | d     | dmin
scales[g]  bits 7654 = m,  bits 3210 = sc of weights 16 g … 16 g + 15
qs         32 bytes serve 128 weights: byte j of such a half holds
           bits 76 = q of weight j + 96,  54 = j + 64,  32 = j + 32,  10 = j

Its encoder: ``fit_offset`` and ``fit_positive`` of ``_search.py`` find scales and minima, ``recode`` of
``_kquants.py`` chooses q for what was stored, ``_weigh.py`` says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import half, offset_of, pair_bits, pairs, u8
from ._kquants import highest, recode
from ._packing import put_half, put_pairs
from ._program import (
    Packer,
    Tile,
    Vector,
    absolute,
    at_once,
    floats,
    from_half,
    get,
    nearest,
    part,
    put,
    real,
    small,
    to_half,
    where,
)
from ._search import fit_offset, fit_positive
from ._weigh import power, weigh
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])
SCALES, QS, D, DMIN = (offset_of(DTYPE, field) for field in ("scales", "qs", "d", "dmin"))


def unpack(blocks: Blocks) -> Parts:
    d = blocks["d"].astype(np.float32)[..., None]
    dmin = blocks["dmin"].astype(np.float32)[..., None]
    scales = blocks["scales"]
    return Parts(pairs(blocks["qs"]).view(np.int8), d * (scales & 15), dmin * (scales >> 4))


def code(block: Bytes, i: int) -> int:
    return pair_bits(block, QS, i)


def sub(block: Bytes, g: int) -> int:
    return u8(block, SCALES + g)


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g) & 15)


def offset(block: Bytes, g: int) -> np.float32:
    return half(block, DMIN) * np.float32(sub(block, g) >> 4)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes = small(x, 256)
    scales, lows, sums = floats(x, 16), floats(x, 16), floats(x, 16)
    fit_groups(x, importance, codes, scales, lows, sums)
    sc, m = small(x, 16), small(x, 16)
    d = four_bits(scales, sums, sc, importance is not None)
    dmin = four_bits(lows, sums, m, importance is not None)
    for g in range(16):
        put(out, SCALES + g, get(sc, g) | get(m, g) << 4)
        put(sc, g, get(out, SCALES + g) & 15)
        put(m, g, get(out, SCALES + g) >> 4)
    for g in at_once(16):
        scale, low = from_half(d) * real(get(sc, g)), from_half(dmin) * real(get(m, g))
        recode(part(x, g, 16), part(codes, g, 16), 16, scale, low, 0, 3)
    put_pairs(out, QS, codes)
    put_half(out, D, d)
    put_half(out, DMIN, dmin)


def fit_groups(x: Tile, importance: Tile | None, codes: Tile, scales: Tile, lows: Tile, sums: Tile) -> None:
    mean = power(x, 256) / np.float32(256)
    for g in at_once(16):
        run, run_codes = part(x, g, 16), part(codes, g, 16)
        w, aux = floats(run, 16), floats(run, 16)
        if importance is None:
            for i in range(16):
                put(w, i, absolute(get(run, i)))
            first, step, steps, linear = np.float32(-0.5), np.float32(0.1), 15, True
        else:
            put(sums, g, weigh(w, run, part(importance, g, 16), 16, mean))
            first, step, steps, linear = np.float32(-0.9), np.float32(0.05), 36, False
        scale, low = fit_offset(run, w, run_codes, aux, 16, 3, first, step, steps, linear)
        put(scales, g, scale)
        put(lows, g, low)


def four_bits(values: Tile, sums: Tile, codes: Tile, weighted: bool) -> Vector:
    """Sixteen values as codes 0 … 15 times a half, whose bits are returned."""
    if weighted:
        return to_half(fit_positive(values, sums, codes, 16, 15))
    largest = highest(values, 16)
    k = where(largest > 0, np.float32(15) / largest, np.float32(0))
    for g in range(16):
        put(codes, g, nearest(k * get(values, g)))
    return to_half(largest / np.float32(15))


FORMAT = BlockFormat(
    name="q2_K", id=10, block_size=256, group=16, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, scales=Scales(sub, nibbles=True),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="q4_0",
)  # fmt: skip
