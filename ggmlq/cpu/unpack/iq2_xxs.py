"""Two runs of 32 weights at a time: eight rows of the grid and 64 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_xxs import DTYPE, GRID, QS, D
from ..jit import inner
from ..lanes import convert, gather, half, load, negated, part, recast, store
from ._grid import packed, signs

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U32, U64, F32 = types.uint8, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        d = half(row, at + D)
        for r in range(4):
            runs = recast(load(row, at + QS + r * 16, 16), U64)
            words = convert(runs >> 32, U32)
            s = convert(words >> 28, F32)
            store(out[1], b * 8 + r * 2, (s + 0.5) * d * 0.25)
            rows = recast(convert(runs, U32), U8)
            codes = negated(recast(gather(ROWS, rows), U8), signs(recast(words, U64)))
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
