"""Low nibbles, then high nibbles of 64 bytes; their upper two bits two apart in 32 others."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q6_k import DTYPE, QH, QL, SCALES, D
from ..lanes import convert, half, load, recast, store
from ..machine.jit import inner

SIZE = DTYPE.itemsize
I8, F32 = types.int8, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        scales = convert(recast(load(row, at + SCALES, 16), I8), F32)
        store(out[1], b * 16, scales * half(row, at + D))
        for h in range(2):
            first = load(row, at + QL + h * 64, 32)
            second = load(row, at + QL + h * 64 + 32, 32)
            upper = load(row, at + QH + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (first & 15 | upper << 4 & 48) - 32)
            put(out, to + 32, (second & 15 | upper << 2 & 48) - 32)
            put(out, to + 64, (first >> 4 | upper & 48) - 32)
            put(out, to + 96, (second >> 4 | upper >> 2 & 48) - 32)
