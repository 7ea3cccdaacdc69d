"""Both nibbles of 16 bytes."""

from __future__ import annotations

from typing import Any

from ...formats.q4_1 import DTYPE, QS, D, M
from ..lanes import half, interleave, load
from ..machine.jit import inner

SIZE = DTYPE.itemsize


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        out[2][b] = -half(row, at + M)
        q = load(row, at + QS, 16)
        put(out, b * 32, interleave(q & 15, q >> 4, 16))
