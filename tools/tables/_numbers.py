"""Figures of the number formats in 8-bit computing (range, step, bits), for the table of docs/scaled.md.

``tools/table.py scaled`` writes the page from here; a test holds each row against NumPy or ml_dtypes.
A float of e exponent bits (bias b) and m mantissa bits has 2^(1-b) as its smallest normal number, a step of
2^(1-b-m) below it and of 2^-m at 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A kind of number: its range and how it is made of bits."""

    name: str
    bits: int
    sign: int
    exponent: int  # bits; 0 for integers
    mantissa: int
    bias: int | None
    max: float
    infinities: bool = False
    nans: str = "–"  # which codes are NaN
    min: float | None = None  # the lowest integer; of floats it is -max
    subnormals: bool = True

    @property
    def lowest(self) -> float:
        """The most negative number."""
        return -self.max * self.sign if self.min is None else self.min

    @property
    def smallest_normal(self) -> float:
        """2^(1-bias); of integers the step."""
        if self.bias is None:
            return 1.0
        return 2.0 ** (1 - self.bias if self.subnormals else -self.bias)

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        if self.bias is None or not self.subnormals:
            return self.smallest_normal
        return float(2.0 ** (1 - self.bias - self.mantissa))

    @property
    def eps(self) -> float:
        """The step at 1.0."""
        return 1.0 if self.bias is None else float(2.0**-self.mantissa)


def _float(name: str, bits: int, exponent: int, mantissa: int) -> Number:
    """A float as IEEE 754 has them: the highest exponent is for infinities and NaN."""
    bias = 2 ** (exponent - 1) - 1
    largest = (2 - 2.0**-mantissa) * 2.0**bias
    nans = "all but two of the highest exponent"
    return Number(name, bits, 1, exponent, mantissa, bias, largest, True, nans)


def _integer(name: str, bits: int, low: int, high: int) -> Number:
    return Number(name, bits, int(low < 0), 0, bits - int(low < 0), None, high, min=low)


NUMBERS = (
    _float("FP32", 32, 8, 23),
    _float("TF32", 32, 8, 10),  # 19 bits of a word of 32, as tensor cores read it
    _float("FP16", 16, 5, 10),
    _float("BF16", 16, 8, 7),
    Number("E4M3", 8, 1, 4, 3, 7, 448.0, nans="0x7F, 0xFF"),
    Number("E5M2", 8, 1, 5, 2, 15, 57344.0, True, "0x7D … 0x7F, 0xFD … 0xFF"),
    Number("E8M0", 8, 0, 8, 0, 127, 2.0**127, nans="0xFF", min=2.0**-127, subnormals=False),
    _integer("INT8", 8, -127, 127),
)
