"""64 weights at a time: eight rows of the grid, their upper bits from a word, and 64 signs."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_s import DTYPE, GRID, QH, QS, SCALES, D
from ..jit import inner
from ..lanes import convert, gather, half, interleave, load, negated, part, ramp, recast, splat, store, word
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID)
U8, U16, U32, U64, F32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = load(row, at + SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + D) * 0.25)
        for r in range(4):
            high = splat(word(row, at + QH + r * 2, U16), U32, 8) << 8 >> ramp(U32, 8, 2) & 0x300
            rows = convert(load(row, at + QS + r * 8, 8), U32) | high
            codes = negated(recast(gather(ROWS, rows), U8), word(row, at + QS + 32 + r * 8, U64))
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
