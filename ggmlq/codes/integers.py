"""The integer codes of 8 or 16 bits, a table: they differ in their range alone.

Bits are those of two's complement or, unsigned, of the number itself.

    int8       -127 … 127         without -128, so that |code| and -code always fit, as in ggml's q8_0:
                                  for weights and activations without a zero point
    int8_full  -128 … 127         with a zero point, where all 256 codes count; its scale still rests on 127
    uint8         0 … 255         values with a zero point, or without negative ones
    int16    -32768 … 32767       states that need more than 8 bits
    uint16        0 … 65535       values with a zero point, or without negative ones
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .code import Code


def nearest(x: Any, low: int, high: int, away: bool) -> int:
    """Atom: the integer next to a float32, ties to even or away from zero; NaN gives 0."""
    if not low < x < high:
        return low if x <= low else high if x >= high else 0
    size = abs(x)
    whole = int(size)
    rest = size - np.float32(whole)
    if rest > np.float32(0.5) or (rest == np.float32(0.5) and (away or whole & 1)):
        whole += 1
    return -whole if x < 0 else whole


def value(code: int) -> Any:
    """Atom: a code as float32."""
    return np.float32(code)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Integer(Code):
    """An integer of 8 or 16 bits."""

    kind = "integer"
    roundings = ("half_even", "half_away")

    def _encode(self, xp: Any, x: Any, saturate: bool, rounding: str) -> Any:
        return self.clipped(xp, rounded(xp, x, rounding)).astype(self.dtype)

    def clipped(self, xp: Any, x: Any) -> Any:
        """Floats clipped to whole numbers of the range, NaN as 0."""
        x = xp.where(xp.isnan(x), np.float32(0), x)
        return xp.clip(x, np.float32(self.min), np.float32(self.max))

    def _decode(self, xp: Any, codes: Any) -> Any:
        return codes.astype(np.float32)


def rounded(xp: Any, x: Any, rounding: str) -> Any:
    """Floats as whole numbers; ties to even, or away from zero."""
    if rounding == "half_even":
        return xp.rint(x)
    whole = xp.trunc(x)
    return whole + xp.copysign((xp.abs(x - whole) >= np.float32(0.5)).astype(np.float32), x)


def _int8(x: Any, away: bool) -> int:
    return nearest(x, -127, 127, away)


def _int8_full(x: Any, away: bool) -> int:
    return nearest(x, -128, 127, away)


def _uint8(x: Any, away: bool) -> int:
    return nearest(x, 0, 255, away)


def _int16(x: Any, away: bool) -> int:
    return nearest(x, -32768, 32767, away)


def _uint16(x: Any, away: bool) -> int:
    return nearest(x, 0, 65535, away)


INTEGERS = tuple(
    Integer(name=name, dtype=np.dtype(dtype), min=low, max=high, to_code=to_code, value=value)
    for name, dtype, low, high, to_code in (
        ("int8", np.int8, -127, 127, _int8),
        ("int8_full", np.int8, -128, 127, _int8_full),
        ("uint8", np.uint8, 0, 255, _uint8),
        ("int16", np.int16, -32768, 32767, _int16),
        ("uint16", np.uint16, 0, 65535, _uint16),
    )
)
