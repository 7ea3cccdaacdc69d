"""``Number``: arrays in float64 that carry how far a right kernel may be from each element.

A kernel computes in float32, in an order of its own. So each step adds the error of its rounding to that of
its operands: this is a running error analysis, to first order and beyond. An oracle that is written with
Numbers has its bound for each element without a further line. Freedoms that kernels have (tables of halves,
quick functions of GPUs, sums in halves) are errors of the steps that have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

UNIT = 2.0**-24  # half an ulp of 1 in float32
HALF = 2.0**-11  # and in float16
SMALLEST_HALF = 2.0**-24  # a step of the smallest halves
SMALLEST = 2.0**-126  # below it a GPU may flush to zero
LARGEST = 3.4028234663852886e38
SPREAD = 4  # times sqrt(n): random roundings need 1, structured data up to 3
QUICK = 2.0**-21  # absolute error of quick sin, cos and log of GPUs
QUICK_TURN = 4 * UNIT  # and of an angle, relative: as turns it is a rounded product with a rounded constant
TF32 = 2.0**-11  # a GPU's tensor cores round float32 to so many bits
ERF = 1.5e-7 + 16 * UNIT  # of a GPU's polynomial for erf (Abramowitz and Stegun 7.1.26), in float32
TANH = 2.0**-10.9  # relative error of a GPU's quick tanh


@dataclass(frozen=True)
class Freedoms:
    """Freedoms that a kernel has beside the order of its sums."""

    quick: bool = False  # a GPU's functions of fewer bits, and variances from sums of squares
    half_sums: bool = False  # attention adds in halves


NONE = Freedoms()
FREEDOMS: ContextVar[Freedoms] = ContextVar("FREEDOMS", default=NONE)


@contextmanager
def freedoms(quick: bool = False, half_sums: bool = False) -> Iterator[None]:
    """Oracles within ``with`` grant kernels these freedoms."""
    token = FREEDOMS.set(Freedoms(quick, half_sums))
    try:
        yield
    finally:
        FREEDOMS.reset(token)


class Number:
    """Values, and the largest error that a right kernel may have made in each."""

    __array_ufunc__ = None  # NumPy leaves `array * number` to us
    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: Any = 0.0) -> None:
        self.value: Wide = np.asarray(value, np.float64)
        self.error: Any = error

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes of the values."""
        return self.value.shape

    def errors(self) -> Wide:
        """The errors as an array of the shape of the values."""
        return np.broadcast_to(np.asarray(self.error, np.float64), self.value.shape)

    # --- arithmetic -----------------------------------------------------------------------

    def __add__(self, other: Any) -> Number:
        b = number(other)
        value = self.value + b.value
        return Number(value, self.error + b.error + UNIT * np.abs(value))

    __radd__ = __add__

    def __neg__(self) -> Number:
        return Number(-self.value, self.error)

    def __sub__(self, other: Any) -> Number:
        return self + -number(other)

    def __rsub__(self, other: Any) -> Number:
        return number(other) + -self

    def __mul__(self, other: Any) -> Number:
        b = number(other)
        value = self.value * b.value
        error = np.abs(self.value) * b.error + np.abs(b.value) * self.error + self.error * b.error
        return Number(value, error + UNIT * np.abs(value))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        b = number(other)
        value = self.value / b.value
        room = np.maximum(np.abs(b.value) - b.error, 0)
        error = (self.error + np.abs(value) * b.error) / room + 4 * UNIT * np.abs(value)
        return Number(value, np.where(np.isfinite(value), error, 0.0))

    def __rtruediv__(self, other: Any) -> Number:
        return number(other) / self

    def __getitem__(self, index: Any) -> Number:
        return Number(self.value[index], self.errors()[index])

    def map(self, move: Any) -> Number:
        """Values and errors moved by the same function of arrays: reshaped, transposed, repeated."""
        return Number(move(self.value), move(self.errors()))

    # --- sums -----------------------------------------------------------------------------

    def sum(self, axis: int | tuple[int, ...] = -1) -> Number:
        """The sum along axes, kept as axes of length 1, in any order."""
        value = self.value.sum(axis=axis, keepdims=True)
        size = np.abs(self.value).sum(axis=axis, keepdims=True)
        n = self.value.size // max(value.size, 1)
        error = np.sum(self.errors(), axis=axis, keepdims=True)
        return Number(value, error + rounding_of_sum(n, size, value))

    def mean(self, axis: int | tuple[int, ...] = -1) -> Number:
        """The mean along axes, kept as axes of length 1."""
        total = self.sum(axis)
        return total / float(self.value.size // max(total.value.size, 1))

    # --- functions ------------------------------------------------------------------------

    def to_half(self) -> Number:
        """Values that a kernel may have rounded to halves on the way."""
        return Number(self.value, self.error + half_step(self.value))

    def clip(self, low: float, high: float) -> Number:
        """Values between two limits, errors as before."""
        return Number(np.clip(self.value, low, high), self.error)

    def exp(self) -> Number:
        """The exponential; a quick one of a GPU loses bits with the size of its argument."""
        value = np.exp(self.value)
        lost = (2.4 * np.abs(np.clip(self.value, -104, 89)) + 4) * UNIT
        grown = np.expm1(np.minimum(self.error, 80.0))
        return Number(value, value * (grown + lost * (1 + grown)))

    def expm1(self) -> Number:
        """The exponential less one."""
        value = np.expm1(self.value)
        grown = np.expm1(np.minimum(self.error, 80.0))
        lost = 4 * UNIT * np.abs(value)
        if quick():  # as exp(x) - 1
            lost = lost + (2.4 * np.abs(np.clip(self.value, -104, 89)) + 4) * UNIT * np.exp(self.value)
        return Number(value, np.exp(self.value) * grown + lost)

    def log(self) -> Number:
        """The logarithm of each."""
        value = np.log(self.value)
        room = np.maximum(self.value - self.error, 0)
        return Number(value, self.error / room + 4 * UNIT * np.abs(value) + (QUICK if quick() else 0.0))

    def sqrt(self) -> Number:
        """The square root of each."""
        value = np.sqrt(self.value)
        up = np.sqrt(self.value + self.error) - value
        down = value - np.sqrt(np.maximum(self.value - self.error, 0))
        return Number(value, np.maximum(up, down) + 4 * UNIT * value)

    def sin(self) -> Number:
        """The sine of each."""
        return self._wave(np.sin(self.value))

    def cos(self) -> Number:
        """The cosine of each."""
        return self._wave(np.cos(self.value))

    def _wave(self, value: Wide) -> Number:
        error = self.error + 2 * UNIT
        if quick():
            error = error + QUICK + QUICK_TURN * np.abs(self.value)
        return Number(value, np.minimum(error, 2.0))

    def tanh(self) -> Number:
        """The hyperbolic tangent of each."""
        value = np.tanh(self.value)
        steepest = 1 - np.tanh(np.maximum(np.abs(self.value) - self.error, 0)) ** 2
        return Number(value, self.error * steepest + (TANH if quick() else 4 * UNIT) * np.abs(value))

    def erf(self) -> Number:
        """The error function of each."""
        value = np.asarray(_ERF(self.value), np.float64)
        steepest = 2 / math.sqrt(math.pi) * np.exp(-(np.maximum(np.abs(self.value) - self.error, 0) ** 2))
        return Number(value, self.error * steepest + (ERF if quick() else 4 * UNIT * np.abs(value)))


_ERF = np.frompyfunc(math.erf, 1, 1)


def quick() -> bool:
    """True where a kernel may use a GPU's quick functions."""
    return FREEDOMS.get().quick


def number(value: Any) -> Number:
    """A Number from one, or from exact values."""
    return value if isinstance(value, Number) else Number(value)


def combined(function: Any, parts: Sequence[Number], *more: int) -> Number:
    """Numbers put together by a function of a list of arrays: stacked, or joined."""
    return Number(function([n.value for n in parts], *more), function([n.errors() for n in parts], *more))


def rounding_of_sum(n: int, size: Any, value: Any, unit: float = UNIT) -> Any:
    """The rounding of a sum of n terms in any order: ``size`` is the sum of magnitudes, ``value`` the sum.

    Few terms: the proven limit, each of n - 1 additions rounds. Many: roundings are random and grow like
    sqrt(n); where terms are all alike they add up to n, and there the result itself is that sum.
    """
    proven = max(n - 1, 0)
    spread = SPREAD * math.sqrt(n)
    if proven <= spread:
        return unit * proven * size
    return unit * (spread * size + n * np.abs(value))


def half_step(value: Wide) -> Wide:
    """Half of the distance between two halves at a value."""
    return np.maximum(HALF * np.abs(value), SMALLEST_HALF / 2)


def larger(a: Any, b: Any) -> Number:
    """The larger of two, element by element; its error is that of either."""
    a, b = number(a), number(b)
    return Number(np.maximum(a.value, b.value), np.maximum(a.error, b.error))


def smaller(a: Any, b: Any) -> Number:
    """The smaller of two, element by element."""
    return -larger(-number(a), -number(b))


def choose(mask: Any, a: Any, b: Any) -> Number:
    """Elements of a where the mask is true, else of b."""
    a, b = number(a), number(b)
    return Number(np.where(mask, a.value, b.value), np.where(mask, a.error, b.error))


def contract(spec: str, a: Any, b: Any, terms: int, unit: float = UNIT) -> Number:
    """``np.einsum(spec, a, b)``, where each element is a sum of so many products, in any order."""
    a, b = number(a), number(b)
    value = np.einsum(spec, a.value, b.value, optimize=True)
    large_a, large_b = np.abs(a.value), np.abs(b.value)
    size = np.einsum(spec, large_a, large_b, optimize=True)
    error = rounding_of_sum(terms, size, value, unit) + unit * size
    if np.any(a.error):
        error = error + np.einsum(spec, a.errors(), large_b + b.errors(), optimize=True)
    if np.any(b.error):
        error = error + np.einsum(spec, large_a, b.errors(), optimize=True)
    return Number(value, error)
