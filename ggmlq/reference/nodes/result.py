"""``Result``: the right result of a node, and which elements of a kernel's result are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .number import HALF, LARGEST, SMALLEST, SMALLEST_HALF, Number, Wide

Mask = NDArray[np.bool_]
LIMITS = {"f16": 65504.0 * (1 + HALF), "bf16": LARGEST, "f32": LARGEST}


@dataclass(frozen=True)
class Result:
    """Values in NumPy's order of axes [ne3, ne2, ne1, ne0], and a bound for each.

    ``exact``: bits must agree, as of a copy. ``accepts``: for results that are not unique (the order of equal
    elements, codes at a tie), a function from a kernel's result to the mask of its right elements.
    """

    value: NDArray[Any]
    bound: Wide
    exact: bool = False
    accepts: Callable[[NDArray[Any]], Mask] | None = None

    @property
    def discrete(self) -> bool:
        """True where results are right or wrong to the bit."""
        return self.exact or self.accepts is not None or self.value.dtype.kind in "iu"

    def wrong(self, y: NDArray[Any]) -> Mask:
        """The elements of a kernel's result that are out of bound, or finite where they should not be."""
        mask: Mask = self.excess(y) > 1
        return mask

    def excess(self, y: NDArray[Any]) -> Wide:
        """The error of each element in units of its bound: more than 1 is wrong."""
        y = np.asarray(y)
        if self.accepts is not None:
            return np.where(self.accepts(y), 0.0, np.inf)
        if self.value.dtype.kind in "iu":
            return np.where(y == self.value, 0.0, np.inf)
        y = y.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(y - self.value)
            ratio = np.where(error == 0, 0.0, error / self.bound)
        same = (y == self.value) | (np.isnan(y) & np.isnan(self.value))
        if self.exact:
            signs = np.signbit(y) == np.signbit(self.value)
            return np.where(same & (signs | np.isnan(y)), 0.0, np.inf)
        judged = ~np.isposinf(self.bound) & ~np.isnan(self.bound)
        odd = ~np.isfinite(self.value) | ~np.isfinite(y)
        ratio = np.where(odd, np.where(same, 0.0, np.inf), ratio)
        # An expected NaN or infinity may be the other one; a large sum may overflow on its way.
        ratio = np.where(~np.isfinite(self.value) & ~np.isfinite(y), 0.0, ratio)
        return np.where(judged, ratio, 0.0)


def settled(n: Number, kind: str = "f32") -> Result:
    """The result of a Number as a kernel stores it, in float32 or in 16 bits."""
    size = np.abs(n.value)
    error = n.errors() + SMALLEST
    if kind == "f16":
        error = error + np.maximum(HALF * (size + error), SMALLEST_HALF)
    elif kind == "bf16":
        error = error + 2.0**-8 * (size + error)
    with np.errstate(invalid="ignore"):
        over = size + error > LIMITS.get(kind, LARGEST)  # to be finite is not promised
    error = np.where(over & np.isfinite(n.value), np.inf, error)
    return Result(n.value, np.where(np.isnan(error), np.inf, error))


def copied(values: NDArray[Any]) -> Result:
    """The result of an operation that moves elements and computes nothing: to the bit."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    return Result(values, np.zeros(values.shape), exact=True)
