"""q5_1: 6 bits a weight, ``value = d * q + m``; 32 weights share d and m.

    struct block_q5_1 { union { struct { ggml_half d, m; }; ggml_half2 dm; };
                        uint8_t qh[4]; uint8_t qs[16]; }

    byte   0 1 | 2 3 | 4 … 7 | 8      9      …  23
           d   | m   | qh    | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 7654 = low four bits of weight j + 16,  bits 3210 = those of weight j
    qh     32 bits, least significant first: bit i = fifth bit of weight i

m is the smallest weight of the block; the offset of the common formula is -m.

Its encoder with importance: ``fit_offset`` of ``_search.py`` tries the scales, ``weigh`` of ``_weigh.py``
says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import bits, f32, half, nibble, nibbles, offset_of, u8
from ._extremes import bounds
from ._packing import put_fifths, put_half, put_nibbles
from ._program import Packer, Tile, at_once, floats, get, put, small, to_half
from ._round import inverse, truncate
from ._search import fit_offset
from ._weigh import weigh
from .format import BlockFormat, Blocks, Bytes, Parts, Scales

DTYPE = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
D, M, QH, QS = (offset_of(DTYPE, field) for field in ("d", "m", "qh", "qs"))


def unpack(blocks: Blocks) -> Parts:
    stored = nibbles(blocks["qs"]) | bits(blocks["qh"]) << 4
    return Parts(stored.view(np.int8), f32(blocks["d"]), -f32(blocks["m"]))


def code(block: Bytes, i: int) -> int:
    fifth = u8(block, QH + i // 8) >> i % 8 & 1
    return nibble(block, QS, i) | fifth << 4


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def offset(block: Bytes, g: int) -> np.float32:
    return -half(block, M)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes = small(x, 32)
    if importance is None:
        low, high = bounds(x, 32)
        d = (high - low + np.float32(0)) / np.float32(31)  # +0: never -0.0
        k = inverse(d)
        for i in at_once(32):
            put(codes, i, truncate((get(x, i) - low) * k + np.float32(0.5)))
    else:
        w, aux = floats(x, 32), floats(x, 32)
        weigh(w, x, importance, 32, get(mean_square, 0))
        first, step = np.float32(-0.9), np.float32(0.05)
        d, low = fit_offset(x, w, codes, aux, 32, 31, first, step, 36, False)
        low = -low
    put_half(out, D, to_half(d))
    put_half(out, M, to_half(low))
    put_fifths(out, QH, codes)
    put_nibbles(out, QS, codes, 32, 16)


FORMAT = BlockFormat(
    name="q5_1", id=7, block_size=32, group=32, dtype=DTYPE, half2="dm",
    unpack=unpack, code=code, scale=scale, offset=offset, scales=Scales(sign=-1),
    pack=Packer(encode, DTYPE, needs_mean_square=True), imatrix="optional", search="weighted", fallback="f16",
)  # fmt: skip
