"""q4_0: 4.5 bits a weight, ``value = d * (q - 8)``; 32 weights share d.

    struct block_q4_0 { ggml_half d; uint8_t qs[16]; }

    byte   0 1 | 2      3      …  17
           d   | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 7654 = q of weight j + 16,  bits 3210 = q of weight j

The nibbles are split, not interleaved: one mask gives 16 neighbours. The extreme weight always gets
the code 0 (value -8 d), so d has the opposite sign; codes go up to 15 (value +7 d).

Its encoder with importance: ``fit_signed`` of ``_search.py`` tries the scales, ``weigh`` of ``_weigh.py``
says what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, nibble, nibbles, offset_of
from ._extremes import extreme
from ._packing import put_half, put_nibbles
from ._program import Packer, Tile, at_once, floats, get, put, small, smaller, to_half
from ._round import inverse, truncate
from ._search import fit_signed
from ._weigh import weigh
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    codes = nibbles(blocks["qs"]).view(np.int8) - np.int8(8)
    return Parts(codes, f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return nibble(block, QS, i) - 8


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    codes = small(x, 32)
    if importance is None:
        d = extreme(x, 32) / np.float32(-8)
        k = inverse(d)
        for i in at_once(32):
            code = truncate(get(x, i) * k + np.float32(8.5))
            put(codes, i, smaller(code, 15))
    else:
        w = floats(x, 32)
        weigh(w, x, importance, 32, get(mean_square, 0))
        d = fit_signed(x, w, codes, 32, 8)
    put_half(out, D, to_half(d))
    put_nibbles(out, QS, codes, 32, 16)


FORMAT = BlockFormat(
    name="q4_0", id=2, block_size=32, group=32, dtype=DTYPE, zero=8,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE, needs_mean_square=True),
    imatrix="optional", search="weighted", fallback="f16",
)  # fmt: skip
