"""Both nibbles of 16 bytes; the 32 fifth bits choose between adding 16 and not."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q5_1 import DTYPE, QH, QS, D, M
from ..lanes import either, half, interleave, load, word
from ..machine.jit import inner

SIZE = DTYPE.itemsize
U8, U32 = types.uint8, types.uint32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        out[2][b] = -half(row, at + M)
        q = load(row, at + QS, 16)
        fifth = either(word(row, at + QH, U32), 16, 0, U8)
        put(out, b * 32, interleave(q & 15, q >> 4, 16) | fifth)
