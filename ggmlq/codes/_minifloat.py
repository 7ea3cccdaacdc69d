"""The common part of the 8-bit floats (e4m3, e5m2). Encoding works on the bits of a float32.

Adding half of what is cut off, less one, plus the last bit that stays, rounds to nearest with ties to
even; a carry runs into the exponent, where it belongs. Below the smallest normal number the unit is
fixed, and a float32 addition to a number with just that unit rounds in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .code import Code

INFINITY = 0x7F800000  # float32
UNIT = np.ldexp(np.float32(1), np.arange(64) - 32).astype(np.float32)  # powers of two, by exponent + 32


def nearest(bits: int, mantissa: int, bias: int, largest: int, beyond: int, nan: int) -> int:
    """Atom: the code next to the float32 with these bits; ``beyond`` where it lies past the largest."""
    sign = bits >> 24 & 0x80
    a = bits & 0x7FFFFFFF
    cut = 23 - mantissa
    if a > 0x7F800000:
        return sign | nan
    if a >= 128 - bias << 23:
        code = (a + (1 << cut - 1) - 1 + (a >> cut & 1) >> cut) - (127 - bias << mantissa)
    else:  # whole units of the smallest number
        down = 151 - bias - mantissa - (a >> 23)
        if down > 25:
            return sign
        significand = a & 0x7FFFFF | 0x800000
        code = significand + (1 << down - 1) - 1 + (significand >> down & 1) >> down
    return sign | (beyond if code > largest else code)


def value(code: int, mantissa: int, bias: int) -> Any:
    """Atom: the float32 of a finite code."""
    exponent = (code & 0x7F) >> mantissa
    whole = code & (1 << mantissa) - 1
    if exponent == 0:
        exponent = 1
    else:
        whole |= 1 << mantissa
    value = np.float32(whole) * UNIT[exponent - bias - mantissa + 32]
    return -value if code & 0x80 else value


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MiniFloat(Code):
    """A float of 8 bits."""

    mantissa: int
    bias: int
    largest: int  # code of the largest finite number
    beyond: int  # code of what does not fit, where it does not saturate: NaN or infinity
    nan: int
    kind = "float"

    def _encode(self, xp: Any, x: Any, saturate: bool, rounding: str) -> Any:
        bits = x.view(np.uint32)
        a = bits & np.uint32(0x7FFFFFFF)
        cut = np.uint32(23 - self.mantissa)
        half = np.uint32((1 << int(cut) - 1) - 1)
        normal = (a + half + (a >> cut & np.uint32(1)) >> cut) - np.uint32(127 - self.bias << self.mantissa)
        magic = np.float32(2.0 ** (24 - self.bias - self.mantissa))
        small = (a.view(np.float32) + magic).view(np.uint32) - magic.view(np.uint32)
        code = xp.where(a < np.uint32(128 - self.bias << 23), small, normal)
        past = np.uint32(self.largest if saturate else self.beyond)
        code = xp.where(code > np.uint32(self.largest), past, code)
        code = xp.where(a > np.uint32(INFINITY), np.uint32(self.nan), code)
        return (code | bits >> np.uint32(24) & np.uint32(0x80)).astype(np.uint8)

    def _decode(self, xp: Any, codes: Any) -> Any:
        return xp.asarray(self.table)[codes]

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """All 256 values, from the atom."""
        values = np.array([self.value(code) for code in range(256)], np.float32)
        values.flags.writeable = False
        return values
