"""64 weights at a time: eight rows of the grid, times 8, each with its own eighth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.iq1_m import DTYPE, GRID, QH, QS, SCALES
from ..lanes import convert, deposit, gather, interleave, ramp, recast, splat, store, widen, word
from ..machine.jit import inner
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID * np.int8(8))
LOW = 0x07FF07FF07FF07FF  # eleven bits of four rows
U8, U16, U32, U64, F32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32


@inner
def put_scales(row: Any, at: int, out: Any, g: int) -> None:
    """The 16 scales of the block whose four words of scales are at an address."""
    words = word(row, at, U64)
    d = words >> 12 & 0xF | words >> 24 & 0xF0 | words >> 36 & 0xF00 | words >> 48 & 0xF000
    for t in range(4):
        s = convert(splat(word(row, at + t * 2, U16), U32, 4) >> ramp(U32, 4, 3) & 7, F32)
        store(out[1], g + t * 4, (s * 2 + 1) * widen(U16(d)) * 0.125)


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        put_scales(row, at + SCALES, out, b * 16)
        for r in range(4):
            qh, qs = word(row, at + QH + r * 4, U32), word(row, at + QS + r * 8, U64)
            four = deposit(qs, 8, 0, 16) | deposit(qh, 4, 8, 16)
            more = deposit(qs >> 32, 8, 0, 16) | deposit(qh >> 16, 4, 8, 16)
            first = gather(ROWS, recast(four & LOW, U16))
            second = gather(ROWS, recast(more & LOW, U16))
            # 0 or 1 to eight bytes of 1 or of -1
            bit = convert(splat(qh, U32, 8) >> ramp(U32, 8, 4) >> 3 & 1, U64)
            eighth = bit - 1 & 0xFEFEFEFEFEFEFEFE ^ 0xFFFFFFFFFFFFFFFF
            put(out, b * 256 + r * 64, recast(interleave(first, second, 4), U8) + recast(eighth, U8))
