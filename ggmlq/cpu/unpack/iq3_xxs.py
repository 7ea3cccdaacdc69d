"""A block at a time: 64 rows of the grid and 256 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq3_xxs import DTYPE, GRID, QS, WORDS, D
from ..lanes import convert, half, load, recast, store
from ..machine.jit import inner
from ._grid import book, fours, put_signed, signs, words_of

SIZE = DTYPE.itemsize
find, codes = book(GRID)
U16, U32, U64, F32 = types.uint16, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        words = load(row, at + WORDS, 32)
        s = convert(recast(words, U32) >> 28, F32)
        store(out[1], b * 8, (s + 0.5) * half(row, at + D) * 0.5)
        first = find(convert(load(row, at + QS, 32), U16))
        second = find(convert(load(row, at + QS + 32, 32), U16))
        minus = words_of(signs(recast(words, U64)))
        put_signed(put, out, b * 256, fours(codes, first, second), minus)
