"""64 weights at a time: eight rows of the grid, their upper bits from a word, and 64 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_s import DTYPE, GRID, QH, QS, SCALES, D
from ..lanes import convert, deposit, gather, half, interleave, load, negated, recast, store, word
from ..machine.jit import inner
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U16, U64, F32 = types.uint8, types.uint16, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = load(row, at + SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + D) * 0.25)
        for r in range(4):
            qh, qs = word(row, at + QH + r * 2, U16), word(row, at + QS + r * 8, U64)
            first = gather(ROWS, recast(deposit(qs, 8, 0, 16) | deposit(qh, 2, 8, 16), U16))
            second = gather(ROWS, recast(deposit(qs >> 32, 8, 0, 16) | deposit(qh >> 8, 2, 8, 16), U16))
            codes = recast(interleave(first, second, 4), U8)
            put(out, b * 256 + r * 64, negated(codes, word(row, at + QS + 32 + r * 8, U64)))
