"""Both nibbles of 16 bytes, looked up among 16 levels."""

from __future__ import annotations

from typing import Any

from ...formats._tables import IQ4
from ...formats.iq4_nl import DTYPE, QS, D
from ..lanes import half, interleave, load, lookup
from ..machine.jit import inner

SIZE = DTYPE.itemsize


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        q = load(row, at + QS, 16)
        put(out, b * 32, interleave(lookup(IQ4, q & 15), lookup(IQ4, q >> 4), 16))
