"""e8m0: a scale of 8 bits, a power of two.

    bit    7 6 5 4 3 2 1 0              value = 2^(e - 127)
                 e                      0xFF is NaN; there is no sign and no zero

It is the exponent field of a float32. A scale is rounded **up** to it, so that values divided by it
stay in range: the field, plus one if any bit of the mantissa is set, at least 1 and at most 254.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .code import Code
from .minifloats import INFINITY

NAN = 0xFF
# 2**(e - 127); Numba knows no bits as floats, so atoms look it up.
POWERS = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.nan).astype(np.float32)


def to_code(bits: int, saturate: bool) -> int:
    """Atom: from the bits of a float32; negative, infinite and NaN give NaN."""
    if bits >= 0x7F800000 and bits != 0x80000000:
        return 0xFF
    field = (bits & 0x7FFFFFFF) + 0x7FFFFF >> 23
    return 1 if field < 1 else 254 if field > 254 else field


def value(code: int) -> Any:
    return POWERS[code]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PowerOfTwo(Code):
    """A scale that is a power of two."""

    kind = "scale"

    def _encode(self, xp: Any, x: Any, saturate: bool, rounding: str) -> Any:
        bits = x.view(np.uint32)
        a = bits & np.uint32(0x7FFFFFFF)
        field = xp.clip(a + np.uint32(0x7FFFFF) >> np.uint32(23), np.uint32(1), np.uint32(254))
        bad = (bits >= np.uint32(INFINITY)) & (a != np.uint32(0))
        return xp.where(bad, np.uint32(NAN), field).astype(np.uint8)

    def _decode(self, xp: Any, codes: Any) -> Any:
        return xp.asarray(POWERS)[codes]


E8M0 = PowerOfTwo(
    name="e8m0", dtype=np.dtype(np.uint8), min=2.0**-127, max=2.0**127, to_code=to_code, value=value,
    aliases=("float8_e8m0fnu",),
)  # fmt: skip
