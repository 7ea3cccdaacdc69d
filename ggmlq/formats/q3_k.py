"""q3_K: 3.4375 bits a weight, ``value = d * (sc - 32) * (q - 4)``; 256 weights, 16 share sc.

struct block_q3_K { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; ggml_half d; }

byte    0 … 31 | 32 … 95 | 96 … 107 | 108 109
        hmask  | qs      | scales   | d
q       low two bits in qs, as in q2_K; the third is bit i / 32 of hmask[i % 32] for weight i
scales  6 bits each, s0 … s15; a letter is a bit, the number says of which scale:
        byte 0 … 7     bits 7654 = low four bits of s(8 … 15),  bits 3210 = of s(0 … 7)
        byte 8 + k     bits 76 = high two of s(12 + k),  54 = s(8 + k),  32 = s(4 + k),  10 = s(k)

Its encoder: ``fit_by_sweeps`` and ``fit_signed`` of ``_search.py`` find the scales, ``recode`` of
``_kquants.py`` chooses q for what was stored, ``_weigh.py`` says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, half, nibbles, offset_of, pair_bits, pairs, u8
from ._extremes import extreme
from ._kquants import recode, signed_byte
from ._packing import put_bits, put_half, put_pairs
from ._program import (
    Packer,
    Tile,
    Vector,
    at_once,
    clamp,
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
    zeros,
)
from ._search import fit_by_sweeps, fit_signed
from ._weigh import power, square, weigh
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])
HMASK, QS, SCALES, D = (offset_of(DTYPE, field) for field in ("hmask", "qs", "scales", "d"))
SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def unpack(blocks: Blocks) -> Parts:
    lead = blocks.shape
    third = bits(blocks["hmask"]).reshape(*lead, 32, 8).swapaxes(-1, -2).reshape(*lead, 256)
    codes = (pairs(blocks["qs"]) | third << 2).view(np.int8) - np.int8(4)
    scales = blocks["scales"]
    low = nibbles(scales[..., :8], run=8)
    high = (scales[..., None, 8:] >> SHIFTS & 3).reshape(*lead, 16)
    sc = (low | high << 4).astype(np.float32) - np.float32(32)
    return Parts(codes, blocks["d"].astype(np.float32)[..., None] * sc, None)


def code(block: Bytes, i: int) -> int:
    third = u8(block, HMASK + i % 32) >> i // 32 & 1
    return (pair_bits(block, QS, i) | third << 2) - 4


def sub(block: Bytes, g: int) -> int:
    low = u8(block, SCALES + g % 8) >> g // 8 * 4 & 15
    high = u8(block, SCALES + 8 + g % 4) >> g // 4 * 2 & 3
    return low | high << 4


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(sub(block, g) - 32)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes, sc = small(x, 256), small(x, 16)
    d = fit_groups(x, importance, codes, sc)
    for g in at_once(16):
        scale = from_half(d) * real(get(sc, g) - 32)
        recode(part(x, g, 16), part(codes, g, 16), 16, scale, zeros(x), -4, 3)
    put_bits(out, HMASK, codes, 2)
    put_pairs(out, QS, codes)
    for k in range(8):
        put(out, SCALES + k, get(sc, k) & 15 | (get(sc, 8 + k) & 15) << 4)
    for k in range(4):
        low = get(sc, k) >> 4 | get(sc, 4 + k) >> 4 << 2
        put(out, SCALES + 8 + k, low | get(sc, 8 + k) >> 4 << 4 | get(sc, 12 + k) >> 4 << 6)
    put_half(out, D, d)


def fit_groups(x: Tile, importance: Tile | None, codes: Tile, sc: Tile) -> Vector:
    """Codes of 256 weights, stored codes of 16 scales, and the bits of d."""
    scales, sums = floats(x, 16), floats(x, 16)
    mean_square = np.float32(2) * power(x, 256) / np.float32(256)
    for g in at_once(16):
        run, run_codes = part(x, g, 16), part(codes, g, 16)
        w = floats(run, 16)
        if importance is None:
            square(w, run, 16)
            put(scales, g, fit_by_sweeps(run, w, run_codes, 16, 4))
        else:
            put(sums, g, weigh(w, run, part(importance, g, 16), 16, mean_square))
            put(scales, g, fit_signed(run, w, run_codes, 16, 4))
    if importance is not None:
        return to_half(fit_signed(scales, sums, sc, 16, 32))
    largest = extreme(scales, 16)
    k = np.float32(-32) / largest
    for g in range(16):
        code = clamp(signed_byte(nearest(k * get(scales, g))), -32, 31) + 32
        put(sc, g, where(largest != 0, code, 0))
    return to_half(where(largest != 0, np.float32(1) / k, np.float32(0)))


FORMAT = BlockFormat(
    name="q3_K", id=11, block_size=256, group=16, dtype=DTYPE, zero=4,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, zero=32),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="q4_0",
)  # fmt: skip
