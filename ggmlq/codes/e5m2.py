"""e5m2: a float of 8 bits with the range of a half, ±57344 in steps of a quarter; for gradients.

    bit    7 | 6 5 4 3 2 | 1 0          value = (-1)^s · 2^(e - 15) · (1 + m/4)
           s |     e     |  m                   (-1)^s · 2^-14 · m/4     where e is 0

It is the upper byte of a half: e = 31 means infinity (0x7C) and NaN, as there. The largest number is
57344 = 2^15 · 1.75, code 0x7B.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._minifloat import MiniFloat, nearest
from ._minifloat import value as finite


def to_code(bits: int, saturate: bool) -> int:
    return nearest(bits, 2, 15, 0x7B, 0x7B if saturate else 0x7C, 0x7E)


def value(code: int) -> Any:
    if code & 0x7F > 0x7C:
        return np.float32(np.nan)
    if code & 0x7F == 0x7C:
        return -np.float32(np.inf) if code & 0x80 else np.float32(np.inf)
    return finite(code, 2, 15)


CODE = MiniFloat(
    name="e5m2", dtype=np.dtype(np.uint8), min=-57344, max=57344, to_code=to_code, value=value,
    mantissa=2, bias=15, largest=0x7B, beyond=0x7C, nan=0x7E, aliases=("float8_e5m2",),
)  # fmt: skip
