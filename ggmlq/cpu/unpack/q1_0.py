"""Each of 32 bits chooses between 1 and -1."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q1_0 import DTYPE, QS, D
from ..lanes import either, half, word
from ..machine.jit import inner

SIZE = DTYPE.itemsize
I8, U32 = types.int8, types.uint32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        for r in range(4):
            put(out, b * 128 + r * 32, either(word(row, at + QS + r * 4, U32), 1, -1, I8))
