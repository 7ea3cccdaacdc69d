"""The doctor's search, with scaled arrays, for columns (or rows) of y that hold those of others.

The right result is known here up to its last rounding. So values alone identify a column, even with one row
in half precision; the search of ``faults/places.py`` has to allow larger differences.
"""

from __future__ import annotations

import numpy as np

from ..numbers import Mask
from ..places import Pattern, as_pattern, held_twice
from .scene import ScaledSurvey

DEAR = 1 << 25  # comparisons
LEAST = 3  # wrong elements that must be found elsewhere


def exchanged(s: ScaledSurvey, bad: Mask) -> Pattern | None:
    """The pattern of y whose wrong columns (or rows) all equal other right ones; None if some do not."""
    return _along(s, bad, 1) or _along(s, bad, 0)


def _along(s: ScaledSurvey, bad: Mask, axis: int) -> Pattern | None:
    y, p, limit, size = (a if axis == 1 else a.T for a in (s.y, s.prediction, s.limit, s.size))
    wrong = bad if axis == 1 else bad.T
    at, use = np.flatnonzero(wrong.any(axis=0)), np.flatnonzero(wrong.any(axis=1))
    n = y.shape[1]
    if len(at) < 2 or len(at) * len(use) < LEAST or len(use) * len(at) * n > DEAR:
        return None
    apart = np.abs(y[np.ix_(use, at)][:, :, None] - p[use][:, None]) / limit[use][:, None]
    loose = np.flatnonzero(~np.isfinite(limit[use]).all(axis=0))  # float32 overflows there: nothing is told
    worst = np.nan_to_num(apart.max(axis=0), nan=np.inf)
    worst[:, loose] = np.inf
    worst[np.arange(len(at)), at] = np.inf
    source = worst.argmin(axis=1)
    if not (worst.min(axis=1) <= 1).all():
        return None
    return as_pattern(at, source, len(use) < len(y), axis, use, held_twice(y, size, use, source, at))
