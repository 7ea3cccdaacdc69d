"""Four runs of 32 weights lie two bits apart in the same 32 bytes, their third bits one apart."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q3_k import DTYPE, HMASK, QS, SCALES, D
from ..lanes import convert, half, interleave, load, recast, store, word
from ..machine.jit import inner

SIZE = DTYPE.itemsize
I8, U8, U32, U64, F32 = types.int8, types.uint8, types.uint32, types.uint64, types.float32


@inner
def scales(row: Any, at: int) -> Any:
    """The sixteen 6-bit numbers, less 32, as bytes."""
    low = load(row, at, 8)
    h = recast(word(row, at + 8, U32), U8)
    first, last = interleave(h & 3, h >> 2 & 3, 4), interleave(h >> 4 & 3, h >> 6, 4)
    return interleave(low & 15 | first << 4, low >> 4 | last << 4, 8) - 32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        store(out[1], b * 16, convert(recast(scales(row, at + SCALES), I8), F32) * half(row, at + D))
        third = load(row, at + HMASK, 32)
        for h in range(2):
            q = load(row, at + QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (q & 3 | third << 2 & 4) - 4)
            put(out, to + 32, (q >> 2 & 3 | third << 1 & 4) - 4)
            put(out, to + 64, (q >> 4 & 3 | third & 4) - 4)
            put(out, to + 96, (q >> 6 | third >> 1 & 4) - 4)
            third = third >> 4
