"""iq4_nl: 4.5 bits a weight, ``value = d * IQ4[q]``; 32 weights share d.

    struct block_iq4_nl { ggml_half d; uint8_t qs[16]; }

    byte   0 1 | 2      3      …  17
           d   | qs[0]  qs[1]  …  qs[15]
    qs[j]  bits 7654 = q of weight j + 16,  bits 3210 = q of weight j

The layout of q4_0 with 16 levels that are denser near zero. The table IQ4 has no zero and is not
symmetric.

Its encoder: ``fit_levels`` and ``put_nearest`` of ``_levels.py`` find scale and codes, ``_weigh.py`` says
what each weight counts.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, level, nibble, nibbles, offset_of
from ._levels import fit_levels, put_nearest
from ._packing import put_half, put_nibbles
from ._program import Packer, Tile, floats, small, to_half, where
from ._tables import IQ4
from ._weigh import power, square, weigh
from .format import BlockFormat, Blocks, Bytes, Parts

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
D, QS = offset_of(DTYPE, "d"), offset_of(DTYPE, "qs")


def unpack(blocks: Blocks) -> Parts:
    return Parts(IQ4[nibbles(blocks["qs"])], f32(blocks["d"]), None)


def code(block: Bytes, i: int) -> int:
    return level(IQ4, nibble(block, QS, i))


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def encode(x: Tile, importance: Tile | None, mean_square: Tile | None, out: Tile) -> None:
    w, codes = floats(x, 32), small(x, 32)
    if importance is None:
        square(w, x, 32)
    else:
        weigh(w, x, importance, 32, power(x, 32) * np.float32(2 / 32))
    scale = fit_levels(x, w, 32)
    put_nearest(x, codes, 32, where(scale != 0, np.float32(1) / scale, np.float32(0)))
    put_half(out, D, to_half(scale))
    put_nibbles(out, QS, codes, 32, 16)


FORMAT = BlockFormat(
    name="iq4_nl", id=20, block_size=32, group=32, dtype=DTYPE,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE),
    imatrix="optional", search="always", fallback="f16",
)  # fmt: skip
