"""e4m3: a float of 8 bits for weights and activations, ±448 in steps of an eighth.

    bit    7 | 6 5 4 3 | 2 1 0          value = (-1)^s · 2^(e - 7) · (1 + m/8)
           s |    e    |   m                    (-1)^s · 2^-6 · m/8      where e is 0

The largest number is 448 = 2^8 · 1.75, code 0x7E. There is no infinity: of the highest exponent only
m = 7 is no number but NaN. Other packages call this code ``float8_e4m3fn``; they have other e4m3 too.
There are eight numbers an octave from 2^-6 on, and a constant step of 2^-9 below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._minifloat import MiniFloat, nearest
from ._minifloat import value as finite


def to_code(bits: int, saturate: bool) -> int:
    return nearest(bits, 3, 7, 0x7E, 0x7E if saturate else 0x7F, 0x7F)


def value(code: int) -> Any:
    return np.float32(np.nan) if code & 0x7F == 0x7F else finite(code, 3, 7)


CODE = MiniFloat(
    name="e4m3", dtype=np.dtype(np.uint8), min=-448, max=448, to_code=to_code, value=value,
    mantissa=3, bias=7, largest=0x7E, beyond=0x7F, nan=0x7F, aliases=("float8_e4m3fn",),
)  # fmt: skip
