"""Four runs of 32 weights lie two bits apart in the same 32 bytes."""

from __future__ import annotations

from typing import Any

from ...formats.tq2_0 import DTYPE, QS, D
from ..lanes import half, load
from ..machine.jit import inner

SIZE = DTYPE.itemsize


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        for h in range(2):
            q = load(row, at + QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (q & 3) - 1)
            put(out, to + 32, (q >> 2 & 3) - 1)
            put(out, to + 64, (q >> 4 & 3) - 1)
            put(out, to + 96, (q >> 6) - 1)
