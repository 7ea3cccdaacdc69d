"""A block at a time: 64 rows of the grid, their ninth bits from words, and 256 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq3_s import DTYPE, GRID, QH, QS, SCALES, SIGNS, D
from ..lanes import convert, either, half, interleave, load, recast, store, word
from ..machine.jit import inner
from ._grid import book, fours, put_signed, words_at

SIZE = DTYPE.itemsize
find, codes = book(GRID)
U8, U16, U32, F32 = types.uint8, types.uint16, types.uint32, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = recast(word(row, at + SCALES, U32), U8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 8, (scale * 2 + 1) * half(row, at + D))
        ninth = either(word(row, at + QH, U32), 256, 0, U16)
        first = find(convert(load(row, at + QS, 32), U16) | ninth)
        ninth = either(word(row, at + QH + 4, U32), 256, 0, U16)
        second = find(convert(load(row, at + QS + 32, 32), U16) | ninth)
        put_signed(put, out, b * 256, fours(codes, first, second), words_at(row, at + SIGNS))
