"""64 weights at a time: eight words of a row of the grid and a sign index."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_xs import DTYPE, GRID, QS, SCALES, D
from ..jit import inner
from ..lanes import convert, gather, half, interleave, load, negated, part, recast, store
from ._grid import packed, signs_of

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U16, F32 = types.uint8, types.uint16, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = load(row, at + SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + D) * 0.25)
        for r in range(4):
            q = recast(load(row, at + QS + r * 16, 16), U16)
            codes = negated(recast(gather(ROWS, q & 511), U8), signs_of(q >> 9))
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
