"""The upper 16 bits of floats, 32 at a time. Handed on are values, not codes; there are no scales."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import convert, load, recast, splat, word
from ..machine.jit import inner

U16, U32, F32 = types.uint16, types.uint32, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    n = len(row) // 2
    whole = n - n % 32
    for i in range(0, whole, 32):
        put(out, i, recast(convert(recast(load(row, i * 2, 64), U16), U32) << 16, F32))
    for i in range(whole, n):
        put(out, i, splat(recast(splat(word(row, i * 2, U16), U32, 1) << 16, F32), F32, 1))
