"""Nibbles of 32 bytes, looked up among 16 levels, in turn eight low ones and eight high ones."""

from __future__ import annotations

from typing import Any

from ...formats._tables import FP4
from ...formats.nvfp4 import DTYPE, QS, UE4M3, D
from ..lanes import gather, interleave, load, lookup, store
from ..machine.jit import inner

SIZE = DTYPE.itemsize


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        store(out[1], b * 4, gather(UE4M3, load(row, at + D, 4)))
        for r in range(2):
            q = load(row, at + QS + r * 16, 16)
            low, high = lookup(FP4, q & 15), lookup(FP4, q >> 4)
            put(out, b * 64 + r * 32, interleave(low, high, 8))
