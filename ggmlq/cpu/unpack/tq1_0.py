"""Base-3 digits without division: a digit is how many thirds of 256 the fraction exceeds.

Multiplied by 3 in eight bits, the fraction drops its leading digit and brings up the next.
"""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.tq1_0 import DTYPE, QH, QS, D
from ..lanes import convert, half, load
from ..machine.jit import inner

SIZE, U8 = DTYPE.itemsize, types.uint8


@inner
def digits(fraction: Any) -> Any:
    """The leading base-3 digits of fractions of 256, less 1."""
    return convert(fraction > 85, U8) + convert(fraction > 170, U8) - 1


@inner
def run(put: Any, out: Any, to: int, fraction: Any, n: int, width: int) -> None:
    for _ in range(n):
        put(out, to, digits(fraction))
        fraction = fraction + fraction + fraction
        to += width


@inner
def walk(row: Any, put: Any, out: Any) -> None:
    for b in range(len(row) // SIZE):
        at = b * SIZE
        out[1][b] = half(row, at + D)
        to = b * 256
        run(put, out, to, load(row, at + QS, 32), 5, 32)
        run(put, out, to + 160, load(row, at + QS + 32, 16), 5, 16)
        run(put, out, to + 240, load(row, at + QH, 4), 4, 4)
