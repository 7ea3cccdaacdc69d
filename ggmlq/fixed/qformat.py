"""``QFormat``, the format of fixed-point codes: value = (code - zero) · 2^-exponent, with 2 to 16 bits.

``format_of`` makes a format of the range of a tensor's values. The scale is the smallest power of two
that covers the range, so up to one bit is lost, and ``zero`` is the code of 0.0.

    low, high include 0                  n = 2^bits - 1 steps
    step = (high - low) / n                 asymmetric
          max(high / ⌊n/2⌋, -low / ⌈n/2⌉)   symmetric and signed; high / n where unsigned
    exponent = ⌊log2(1 / step)⌋          zero = least code - ⌊low · 2^exponent⌋, or 0 where symmetric
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_SCALE = 1.19e-7  # no scale is smaller: an all-zero range has some format too
MOST_BITS = 16


class QFormat(NamedTuple):
    """The format of a tensor; of a matrix with one exponent a row, ``exponent`` is an array of int64."""

    exponent: Any
    zero: int
    bits: int
    signed: bool

    @property
    def low(self) -> int:
        """The least of the codes."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest of the codes."""
        return self.low + (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that codes are stored in."""
        return np.dtype(("int" if self.signed else "uint") + ("8" if self.bits <= 8 else "16"))

    @property
    def scale(self) -> Any:
        """The value of a step, 2^-exponent, as float64."""
        return np.ldexp(1.0, -np.asarray(self.exponent))

    def unclipped(self, x: Any, rounding: str = "half_away") -> NDArray[np.float64]:
        """Codes of floats, rounded but not clipped, as float64."""
        v = np.ldexp(np.asarray(x, np.float64), self._along(x))
        values: NDArray[np.float64] = (np.rint(v) if rounding == "half_even" else half_away(v)) + self.zero
        return values

    def encode(self, x: Any, rounding: str = "half_away") -> NDArray[Any]:
        """Codes of floats, rounded and clipped."""
        with np.errstate(over="ignore"):
            codes = np.clip(self.unclipped(x, rounding), self.low, self.high)
        return codes.astype(self.dtype)

    def decode(self, codes: Any, dtype: Any = np.float32) -> NDArray[Any]:
        """Floats of codes, exact in float32 as long as that has the exponent."""
        wide = np.asarray(codes, np.int64) - self.zero
        values: NDArray[Any] = np.ldexp(wide.astype(np.float64), -self._along(wide)).astype(dtype)
        return values

    def _along(self, x: Any) -> Any:
        """The exponents beside an array: one a row where there are several."""
        exponent = np.asarray(self.exponent, np.int64)
        return exponent.reshape(-1, *[1] * (np.ndim(x) - 1)) if exponent.ndim else exponent


def half_away(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Floats rounded to whole numbers, ties away from zero."""
    whole = np.trunc(v)
    with np.errstate(invalid="ignore"):  # infinities stay what they are
        rest = np.abs(v - whole) >= 0.5
    return whole + np.copysign(rest, v)


def format_of(
    low: Any, high: Any, bits: int, signed: bool = True, symmetric: bool = False, nearest: bool = False
) -> QFormat:
    """The format for the range low … high; arrays of both give each row of a matrix its own exponent.

    ``nearest``: the power of two next to the step, not the one above it; the ends, even 0.0, may be clipped.

    >>> format_of(-1, 1, 8)
    QFormat(exponent=6, zero=-64, bits=8, signed=True)
    >>> format_of(0, 255 / 256, 8, signed=False)
    QFormat(exponent=8, zero=0, bits=8, signed=False)
    """
    low = np.minimum(np.asarray(low, np.float64), 0)
    high = np.maximum(np.asarray(high, np.float64), 0)
    step = np.maximum(_step(low, high, bits, signed, symmetric), min(LEAST_SCALE, 0.01 / ((1 << bits) - 1)))
    exponent = _nearest(step) if nearest else _floor_log2_inverse(step)
    plain = QFormat(exponent if exponent.ndim else int(exponent), 0, bits, signed)
    if symmetric:
        return plain
    return plain._replace(zero=plain.low - int(np.floor(np.ldexp(low, exponent))))


def _step(low: Any, high: Any, bits: int, signed: bool, symmetric: bool) -> Any:
    steps = (1 << bits) - 1
    if not symmetric:
        with np.errstate(over="ignore"):
            return np.minimum(high - low, np.finfo(np.float64).max) / steps
    if not signed:
        return high / steps
    return np.maximum(high / (steps // 2), -low / (steps - steps // 2))


def _floor_log2_inverse(step: Any) -> Any:
    """⌊log2(1 / step)⌋, right for powers of two as well."""
    mantissa, exponent = np.frexp(step)
    return np.asarray((mantissa == 0.5) - exponent.astype(np.int64), np.int64)


def _nearest(step: Any) -> Any:
    return np.asarray(np.rint(-np.log2(step)), np.int64)
