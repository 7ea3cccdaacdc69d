"""The 8-bit floats: e4m3 for weights and activations, e5m2 for gradients.

e4m3: ±448 in steps of an eighth.

    bit    7 | 6 5 4 3 | 2 1 0          value = (-1)^s · 2^(e - 7) · (1 + m/8)
           s |    e    |   m                    (-1)^s · 2^-6 · m/8      where e is 0

The largest number is 448 = 2^8 · 1.75, code 0x7E. There is no infinity: of the highest exponent only
m = 7 is no number but NaN. Other packages call this code ``float8_e4m3fn``; they have other e4m3 too.
There are eight numbers an octave from 2^-6 on, and a constant step of 2^-9 below.

e5m2: the range of a half, ±57344 in steps of a quarter.

    bit    7 | 6 5 4 3 2 | 1 0          value = (-1)^s · 2^(e - 15) · (1 + m/4)
           s |     e     |  m                   (-1)^s · 2^-14 · m/4     where e is 0

It is the upper byte of a half: e = 31 means infinity (0x7C) and NaN, as there. The largest number is
57344 = 2^15 · 1.75, code 0x7B.

Encoding works on the bits of a float32.

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


def _e4m3_code(bits: int, saturate: bool) -> int:
    return nearest(bits, 3, 7, 0x7E, 0x7E if saturate else 0x7F, 0x7F)


def _e4m3_value(code: int) -> Any:
    return np.float32(np.nan) if code & 0x7F == 0x7F else value(code, 3, 7)


def _e5m2_code(bits: int, saturate: bool) -> int:
    return nearest(bits, 2, 15, 0x7B, 0x7B if saturate else 0x7C, 0x7E)


def _e5m2_value(code: int) -> Any:
    if code & 0x7F > 0x7C:
        return np.float32(np.nan)
    if code & 0x7F == 0x7C:
        return -np.float32(np.inf) if code & 0x80 else np.float32(np.inf)
    return value(code, 2, 15)


E4M3 = MiniFloat(
    name="e4m3", dtype=np.dtype(np.uint8), min=-448, max=448, to_code=_e4m3_code, value=_e4m3_value,
    mantissa=3, bias=7, largest=0x7E, beyond=0x7F, nan=0x7F, aliases=("float8_e4m3fn",),
)  # fmt: skip
E5M2 = MiniFloat(
    name="e5m2", dtype=np.dtype(np.uint8), min=-57344, max=57344, to_code=_e5m2_code, value=_e5m2_value,
    mantissa=2, bias=15, largest=0x7B, beyond=0x7C, nan=0x7E, aliases=("float8_e5m2",),
)  # fmt: skip
