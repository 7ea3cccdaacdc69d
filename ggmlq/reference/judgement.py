"""The judgement of a product: its distance from the oracle, row by row, in its kernel's arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.ladder import Rung, choose
from ..dispatch.problems import Linear
from .agreement import row_errors
from .linear import linear

# How far a kernel may be from the oracle on its own operands, by what it sums in.
TOLERANCE = {"int32": 1e-11, "f32": 1e-10, "f16": 2e-7}
# In f16r the sum of a run is rounded to a half twice, by 2^-11 at most; one run may be nearly all of a row.
OF_HALF_SUMS = 2.0**-20


@dataclass(frozen=True)
class Judgement:
    """The distance of each row of weights from the oracle, and its bound."""

    rung: Rung
    errors: NDArray[np.float64]  # [N], as reference.row_errors has them
    bound: float

    @property
    def worst(self) -> float:
        """The error of the worst row; 0 if there is none."""
        return float(self.errors.max(initial=0))

    @property
    def right(self) -> bool:
        """True where no row is beyond its bound."""
        return bool((self.errors <= self.bound).all())  # NaN is beyond


def judged(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> Judgement:
    """The judgement of a product y against the oracle in the arithmetic of its rung.

    Without a rung it is the one that ``auto`` takes for this product.
    """
    if rung is None:
        m, (n, k), kind = math.prod(x.shape[:-1]), q.shape, q.device.partition(":")[0]
        rung = choose(Linear.here(q.format, m, n, k, device=kind))
    want = linear(x, q, rung.arithmetic)
    assert y.shape == want.shape, f"{q!r}: shape {y.shape}, expected {want.shape}"
    errors = row_errors(to_host(y), want, to_host(x), q) if want.size else np.zeros(0)
    return Judgement(rung, errors, tolerance(rung))


def tolerance(rung: Rung) -> float:
    """The distance from the oracle that a rung's sums allow."""
    return OF_HALF_SUMS if rung.arithmetic == "f16r" else TOLERANCE[rung.accumulate]
