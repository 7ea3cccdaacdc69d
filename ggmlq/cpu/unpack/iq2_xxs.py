"""A block at a time: 32 rows of the grid and 256 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_xxs import DTYPE, GRID, QS, D
from ..lanes import convert, half, load, recast, store
from ..machine.jit import inner
from ._grid import book, eights, put_signed, signs, words_of

SIZE = DTYPE.itemsize
find, codes = book(GRID)
U8, U16, U32, U64, F32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        runs = recast(load(row, at + QS, 64), U64)
        words = convert(runs >> 32, U32)
        store(out[1], b * 8, (convert(words >> 28, F32) + 0.5) * half(row, at + D) * 0.25)
        rows = convert(recast(convert(runs, U32), U8), U16)
        put_signed(put, out, b * 256, eights(codes, find(rows)), words_of(signs(recast(words, U64))))
