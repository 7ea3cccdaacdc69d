"""A block at a time: 32 words of a row of the grid and a sign index."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.iq2_xs import DTYPE, GRID, QS, SCALES, D
from ..lanes import convert, half, interleave, load, recast, store
from ..machine.jit import inner
from ._grid import book, eights, put_signed, signs_of, words_of

SIZE = DTYPE.itemsize
find, codes = book(GRID)
U16, F32 = types.uint16, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = load(row, at + SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + D) * 0.25)
        q = recast(load(row, at + QS, 64), U16)
        put_signed(put, out, b * 256, eights(codes, find(q & 511)), words_of(signs_of(q >> 9)))
