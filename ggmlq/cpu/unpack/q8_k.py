"""The bytes are the codes; the scale is a float already."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.q8_k import DTYPE, QS, D
from ..lanes import load, word
from ..machine.jit import inner

SIZE = DTYPE.itemsize
F32 = types.float32


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = word(row, at + D, F32)
        for r in range(8):
            put(out, b * 256 + r * 32, load(row, at + QS + r * 32, 32))
