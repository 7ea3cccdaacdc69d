"""A byte's four codes, brought to the four bytes of a 32-bit lane by two shifts."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q2_0 import DTYPE, QS, D
from ..lanes import convert, half, load, recast
from ..machine.jit import inner

SIZE = DTYPE.itemsize
U8, U32 = types.uint8, types.uint32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        for r in range(2):
            q = convert(load(row, at + QS + r * 8, 8), U32)
            q = q | q << 6
            q = (q | q << 12) & 0x03030303
            put(out, b * 64 + r * 32, recast(q, U8) - 1)
