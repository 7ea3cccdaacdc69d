"""q6_K: 6.5625 bits a weight, ``value = d * sc * (q - 32)``; 256 weights, 16 share sc.

struct block_q6_K { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; ggml_half d; }

byte   0 … 127 | 128 … 191 | 192 … 207 | 208 209
       ql      | qh        | scales    | d
ql     64 bytes serve 128 weights, the low four bits of each: bits 7654 of byte j = weight
       j + 64, bits 3210 = weight j
qh     32 bytes serve 128 weights, the high two bits of each: byte j holds
       bits 76 = weight j + 96,  54 = j + 64,  32 = j + 32,  10 = j

Its encoder: ``fit_signed`` of ``_search.py`` finds the scales, ``recode`` of ``_kquants.py`` chooses q for
what was stored, ``_weigh.py`` says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import half, i8, nibbles, offset_of, pair_bits, pairs, u8
from ._extremes import extreme
from ._kquants import recode, signed_byte
from ._packing import put_half, put_nibbles
from ._program import (
    Packer,
    Tile,
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
    some,
    to_half,
    where,
    zeros,
)
from ._search import TINY, fit_signed
from ._weigh import square
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])
QL, QH, SCALES, D = (offset_of(DTYPE, field) for field in ("ql", "qh", "scales", "d"))


def unpack(blocks: Blocks) -> Parts:
    stored = nibbles(blocks["ql"], run=64) | pairs(blocks["qh"]) << 4
    d = blocks["d"].astype(np.float32)[..., None]
    return Parts(stored.view(np.int8) - np.int8(32), d * blocks["scales"], None)


def code(block: Bytes, i: int) -> int:
    low = u8(block, QL + i // 128 * 64 + i % 64) >> i % 128 // 64 * 4 & 15
    return (low | pair_bits(block, QH, i) << 4) - 32


def sub(block: Bytes, g: int) -> int:
    return u8(block, SCALES + g) ^ 128


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D) * np.float32(i8(block, SCALES + g))


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes, sc, scales = small(x, 256), small(x, 16), floats(x, 16)
    for g in at_once(16):
        run, run_codes = part(x, g, 16), part(codes, g, 16)
        if importance is None:
            w = floats(run, 16)
            square(w, run, 16)
            put(scales, g, fit_signed(run, w, run_codes, 16, 32))
        else:
            put(scales, g, fit_signed(run, part(importance, g, 16), run_codes, 16, 32))
    largest = extreme(scales, 16)
    k = np.float32(-128) / largest
    d = to_half(np.float32(1) / k)
    put_half(out, D, d)
    for g in at_once(16):
        code = nearest(k * get(scales, g))
        code = signed_byte(where(code < 127, code, 127))
        put(sc, g, code)
        scale = from_half(d) * real(code)
        recode(part(x, g, 16), part(codes, g, 16), 16, scale, zeros(x), -32, 31)
    for g in range(16):
        put(out, SCALES + g, get(sc, g))
    put_codes(out, codes)
    flat = absolute(largest) < TINY
    if some(flat):
        for i in range(210):
            put(out, i, where(flat, 0, get(out, i)))


def put_codes(out: Tile, codes: Tile) -> None:
    put_nibbles(out, QL, codes, 256, 64)
    for i in range(64):
        j = i // 32 * 128 + i % 32
        low = get(codes, j) >> 4 | get(codes, j + 32) >> 4 << 2
        put(out, QH + i, low | get(codes, j + 64) >> 4 << 4 | get(codes, j + 96) >> 4 << 6)


FORMAT = BlockFormat(
    name="q6_K", id=14, block_size=256, group=16, dtype=DTYPE, zero=32,
    unpack=unpack, code=code, scale=scale, scales=Scales(sub, zero=128),
    pack=Packer(encode, DTYPE), imatrix="optional", search="always", fallback="q8_0",
)  # fmt: skip
