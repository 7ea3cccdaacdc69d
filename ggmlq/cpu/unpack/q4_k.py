"""Both nibbles of 32 bytes, 64 weights at a time."""

from __future__ import annotations

from typing import Any

from ...formats.q4_k import DMIN, DTYPE, QS, SCALES, D
from ..lanes import load
from ..machine.jit import inner
from ._k_scales import put_scales

SIZE = DTYPE.itemsize


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        put_scales(row, at + D, at + DMIN, at + SCALES, out, b * 8)
        for r in range(4):
            q = load(row, at + QS + r * 32, 32)
            put(out, b * 256 + r * 64, q & 15)
            put(out, b * 256 + r * 64 + 32, q >> 4)
