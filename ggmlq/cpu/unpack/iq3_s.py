"""64 weights at a time: sixteen rows of the grid, their ninth bits from a word, and 64 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq3_s import DTYPE, GRID, QH, QS, SCALES, SIGNS, D
from ..jit import inner
from ..lanes import convert, either, gather, half, interleave, load, negated, part, recast, store, word
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U16, U32, U64, F32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = recast(word(row, at + SCALES, U32), U8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 8, (scale * 2 + 1) * half(row, at + D))
        for r in range(4):
            ninth = either(word(row, at + QH + r * 2, U16), 256, 0, U32)
            rows = convert(load(row, at + QS + r * 16, 16), U32) | ninth
            codes = negated(recast(gather(ROWS, rows), U8), word(row, at + SIGNS + r * 8, U64))
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
