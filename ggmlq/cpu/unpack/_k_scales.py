"""The 6-bit scales and minima of q4_K and q5_K (picture in formats/q4_k.py), four in a word."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import convert, half, interleave, recast, store, word
from ..machine.jit import inner

U8, U32, F32 = types.uint8, types.uint32, types.float32


@inner
def put_scales(row: Any, d: int, dmin: int, scales: int, out: Any, g: int) -> None:
    """The eight scales and offsets of a block, its fields at these addresses, from group g on."""
    a = recast(word(row, scales, U32), U8)
    b = recast(word(row, scales + 4, U32), U8)
    c = recast(word(row, scales + 8, U32), U8)
    sc = interleave(a & 63, c & 15 | a >> 6 << 4, 4)
    m = interleave(b & 63, c >> 4 | b >> 6 << 4, 4)
    store(out[1], g, convert(sc, F32) * half(row, d))
    store(out[2], g, convert(m, F32) * half(row, dmin))
