"""Two runs of 32 weights at a time: sixteen rows of the grid and 64 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq3_xxs import DTYPE, GRID, QS, WORDS, D
from ..jit import inner
from ..lanes import convert, gather, half, load, negated, part, recast, store, word
from ._grid import packed, signs

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U32, U64, F32 = types.uint8, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = convert(recast(load(row, at + WORDS, 32), U32) >> 28, F32)
        store(out[1], b * 8, (s + 0.5) * half(row, at + D) * 0.5)
        for r in range(4):
            rows = load(row, at + QS + r * 16, 16)
            minus = signs(word(row, at + WORDS + r * 8, U64))
            codes = negated(recast(gather(ROWS, rows), U8), minus)
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
