"""64 weights at a time: eight rows of the grid, times 8, each with its own eighth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.iq1_m import DTYPE, GRID, QH, QS, SCALES
from ..jit import inner
from ..lanes import convert, gather, load, part, ramp, recast, splat, store, widen, word
from ._grid import packed

SIZE = DTYPE.itemsize
ROWS = packed(GRID * np.int8(8))
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
            qh = splat(word(row, at + QH + r * 4, U32), U32, 8) >> ramp(U32, 8, 4)
            rows = convert(load(row, at + QS + r * 8, 8), U32) | (qh & 7) << 8
            # 0 or 1 to eight bytes of 1 or of -1
            eighth = convert(qh >> 3 & 1, U64) - 1 & 0xFEFEFEFEFEFEFEFE ^ 0xFFFFFFFFFFFFFFFF
            codes = recast(gather(ROWS, rows), U8) + recast(eighth, U8)
            put(out, b * 256 + r * 64, part(codes, 0, 32))
            put(out, b * 256 + r * 64 + 32, part(codes, 32, 32))
