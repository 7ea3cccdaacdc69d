"""Errors that right kernels may make in single weights, by the type that they compute in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..numbers import HALF, LARGEST_HALF, LEAST_HALF, SMALLEST, Mask, Wide
from .operand import Operand

LARGEST = 3.38e38  # of float32 and bfloat16


class Rounding(NamedTuple):
    """The errors that a right kernel may make in one weight, of the sizes of its terms."""

    unit: float
    least: float  # below it numbers may become zero
    largest: float = np.inf  # terms beyond it may be infinite

    def limits(self, w: Operand) -> Wide:
        """How far each weight may be from the right one."""
        with np.errstate(all="ignore"):
            terms = np.abs(w.scaled) + np.abs(w.dense)
            factors = np.zeros(())
            if w.values is None:
                factors = np.maximum(np.abs(w.scale), np.abs(w.offset)).repeat(w.group, axis=1)
                terms = terms + np.abs(w.offset).repeat(w.group, axis=1)
            limit: Wide = 4 * self.unit * terms + self.least * (2 + np.abs(w.stored))
        return np.where(np.maximum(terms, factors) > self.largest, np.inf, limit)  # 0·∞ on the way


ROUNDINGS = {
    "float32": Rounding(2.0**-24, SMALLEST, LARGEST),
    "float64": Rounding(2.0**-24, SMALLEST, LARGEST),
    "float16": Rounding(HALF, LEAST_HALF, LARGEST_HALF),
    "bfloat16": Rounding(2.0**-8, SMALLEST, LARGEST),
}
OF_CODES = Rounding(2e-3, SMALLEST)  # y of unit vectors: kernels round activations and scales


def near(used: Wide, right: Wide, limit: Wide) -> Mask:
    """Weights that are right: within the limit, or not finite where the right one is not."""
    with np.errstate(invalid="ignore"):
        close = np.abs(used - right) <= limit
        wild = ~np.isfinite(right) | ~np.isfinite(limit)
        return np.asarray(close | (wild & ~np.isfinite(used)))
