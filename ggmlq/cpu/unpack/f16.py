"""Halves widened, 32 at a time. Handed on are values, not codes; there are no scales."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import load, recast, splat, widen, word
from ..machine.jit import inner

U16, F32 = types.uint16, types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    n = len(row) // 2
    whole = n - n % 32
    for i in range(0, whole, 32):
        put(out, i, widen(recast(load(row, i * 2, 64), U16)))
    for i in range(whole, n):
        put(out, i, splat(widen(word(row, i * 2, U16)), F32, 1))
