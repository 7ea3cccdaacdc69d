"""Four runs of 32 weights lie two bits apart in the same 32 bytes."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q2_k import DMIN, DTYPE, QS, SCALES, D
from ..lanes import convert, half, load, store
from ..machine.jit import inner

SIZE = DTYPE.itemsize
F32 = types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        scales = load(row, at + SCALES, 16)
        store(out[1], b * 16, convert(scales & 15, F32) * half(row, at + D))
        store(out[2], b * 16, convert(scales >> 4, F32) * half(row, at + DMIN))
        for h in range(2):
            q = load(row, at + QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, q & 3)
            put(out, to + 32, q >> 2 & 3)
            put(out, to + 64, q >> 4 & 3)
            put(out, to + 96, q >> 6)
