"""A run of 32 weights at a time: four rows of the grid, times 8, and one eighth for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.iq1_s import DTYPE, GRID, QH, QS, D
from ..lanes import convert, deposit, gather, half, load, recast, store, word
from ..machine.jit import inner
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID * np.int8(8))
U8, U16, U32, F32 = types.uint8, types.uint16, types.uint32, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        s = convert(recast(load(row, at + QH, 16), U16) >> 12 & 7, F32)
        store(out[1], b * 8, (s * 2 + 1) * half(row, at + D) * 0.125)
        for r in range(8):
            qh = word(row, at + QH + r * 2, U16)
            low = deposit(word(row, at + QS + r * 4, U32), 8, 0, 16)
            rows = recast(low | deposit(qh, 3, 8, 16), U16)
            put(out, b * 256 + r * 32, recast(gather(ROWS, rows), U8) + (1 - (qh >> 15) * 2))
