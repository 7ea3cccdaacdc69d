"""Is a product right? Judged per weight row, in the arithmetic that the kernel declares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..array import QuantArray
from ..devices import to_host
from ..ladder import Rung

# How far a kernel may be from the oracle on its own operands, by what it sums in.
TOLERANCE = {"int32": 1e-11, "f32": 1e-10, "f16": 2e-7}


def row_errors(y: Any, want: NDArray[np.float64], x: Any, q: QuantArray) -> NDArray[np.float64]:
    """[N]: squared error of each weight row over the product of the norms, divided by K.

    A figure over the whole matrix is blind to small rows beside a large one.
    """
    w = np.asarray(to_host(q), np.float64)
    rows = np.asarray(to_host(x), np.float64).reshape(-1, w.shape[1])
    energy = (rows**2).sum() * (w**2).sum(axis=1) / max(w.shape[1], 1)
    difference = np.asarray(to_host(y), np.float64) - want
    total = (difference.reshape(len(rows), len(w)) ** 2).sum(axis=0)
    errors: NDArray[np.float64] = np.where(total == 0, 0.0, np.inf)
    np.divide(total, energy, out=errors, where=energy > 0)
    return errors


def assert_right(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> None:
    """A product must be as near to the oracle as float32 sums (or the rung's own) allow."""
    arithmetic = rung.arithmetic if rung and rung.arithmetic in reference.ARITHMETICS else "exact"
    bound = TOLERANCE[rung.accumulate if rung else "f32"]
    want = reference.linear(x, q, arithmetic)
    assert y.shape == want.shape, f"{q!r}: shape {y.shape}, expected {want.shape}"
    if not want.size:
        return
    errors = row_errors(y, want, x, q)
    worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    if not errors[worst] <= bound:
        raise AssertionError(
            f"{q!r}, {rung.name if rung else 'auto'}: row {worst} is off by {errors[worst]:.2e}, "
            f"the bound is {bound:.0e}; rows beyond it: {int((~(errors <= bound)).sum())}"
        )
