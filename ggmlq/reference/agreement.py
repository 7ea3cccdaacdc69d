"""The agreement of a result with its reference, row of weights by row of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..ops import dequantize


def row_errors(y: Any, reference: Any, x: Any, q: QuantArray) -> NDArray[np.float64]:
    """For each row of q: ``Σ (y - reference)**2 / Σ |x|**2 |w|**2 / K``, sums over rows of x.

    A figure over the whole matrix would be blind to small rows beside a large one, and one scaled
    by the result itself explodes where products cancel. Elements that both hold as NaN or infinity
    are left out; where only one does, the row's error is infinite.
    """
    w = np.asarray(dequantize(q, np.float64))
    x = np.asarray(x, np.float64).reshape(-1, w.shape[1])
    got = np.asarray(y, np.float64).reshape(len(x), len(w))
    want = np.asarray(reference, np.float64).reshape(got.shape)
    both = np.isfinite(got) & np.isfinite(want)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        square = np.where(both, got - want, 0) ** 2
        energy = np.outer((x**2).sum(axis=1), (w**2).sum(axis=1)) / w.shape[1]
        error: NDArray[np.float64] = square.sum(axis=0) / np.where(both, energy, 0).sum(axis=0)
    error[square.sum(axis=0) == 0] = 0
    error[(np.isfinite(got) != np.isfinite(want)).any(axis=0)] = np.inf
    return error
