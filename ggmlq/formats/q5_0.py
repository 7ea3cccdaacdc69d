"""q5_0: 5.5 bits a weight, ``value = d * (q - 16)``; 32 weights share d.

struct block_q5_0 { ggml_half d; uint8_t qh[4]; uint8_t qs[16]; }

byte   0 1 | 2 … 5 | 6      7      …  21
       d   | qh    | qs[0]  qs[1]  …  qs[15]
qs[j]  bits 7654 = low four bits of weight j + 16,  bits 3210 = those of weight j
qh     32 bits, least significant first: bit i = fifth bit of weight i

Its encoder with importance: ``fit_signed`` of ``_search.py`` tries the scales, ``weigh`` of ``_weigh.py``
says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, f32, half, nibble, nibbles, offset_of, u8
from ._extremes import extreme
from ._packing import put_fifths, put_half, put_nibbles
from ._program import Packer, Tile, at_once, floats, get, put, small, smaller, to_half
from ._round import inverse, truncate
from ._search import fit_signed
from ._weigh import weigh
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
D, QH, QS = (offset_of(DTYPE, field) for field in ("d", "qh", "qs"))


def unpack(blocks: Blocks) -> Parts:
    stored = nibbles(blocks["qs"]) | bits(blocks["qh"]) << 4
    return Parts(stored.view(np.int8) - np.int8(16), f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    fifth = u8(block, QH + i // 8) >> i % 8 & 1
    return (nibble(block, QS, i) | fifth << 4) - 16


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes = small(x, 32)
    if importance is None:
        d = extreme(x, 32) / np.float32(-16)
        k = inverse(d)
        for i in at_once(32):
            code = truncate(get(x, i) * k + np.float32(16.5))
            put(codes, i, smaller(code, 31))
    else:
        w = floats(x, 32)
        weigh(w, x, importance, 32, get(mean_square, 0))
        d = fit_signed(x, w, codes, 32, 16)
    put_half(out, D, to_half(d))
    put_fifths(out, QH, codes)
    put_nibbles(out, QS, codes, 32, 16)


FORMAT = BlockFormat(
    name="q5_0", id=6, block_size=32, group=32, dtype=DTYPE, zero=16,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE, needs_mean_square=True),
    imatrix="optional", search="weighted", fallback="f16",
)  # fmt: skip
