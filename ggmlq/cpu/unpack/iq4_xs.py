"""Both nibbles of 16 bytes, looked up among 16 levels; eight 6-bit scales from two fields."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats._tables import IQ4
from ...formats.iq4_xs import DTYPE, QS, SCALES_H, SCALES_L, D
from ..lanes import convert, half, interleave, load, lookup, ramp, recast, splat, store, word
from ..machine.jit import inner

SIZE = DTYPE.itemsize
I32, U8, U16, U32, F32 = types.int32, types.uint8, types.uint16, types.uint32, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        high = splat(word(row, at + SCALES_H, U16), I32, 8) >> ramp(I32, 8, 2) & 3
        low = recast(word(row, at + SCALES_L, U32), U8)
        ls = convert(interleave(low & 15, low >> 4, 1), I32) | high << 4
        store(out[1], b * 8, convert(ls - 32, F32) * half(row, at + D))
        for r in range(8):
            q = load(row, at + QS + r * 16, 16)
            put(out, b * 256 + r * 32, interleave(lookup(IQ4, q & 15), lookup(IQ4, q >> 4), 16))
