"""Evenly spaced indices, which sample an axis from its first place to its last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly_spaced(length: int, count: int) -> NDArray[np.intp]:
    """Indices of ``count`` of ``length`` places, from the first to the last; all where there are no more.

    >>> evenly_spaced(9, 3).tolist(), evenly_spaced(2, 3).tolist(), evenly_spaced(0, 3).tolist()
    ([0, 4, 8], [0, 1], [])
    """
    return np.unique(np.linspace(0, max(length - 1, 0), max(min(count, length), 0)).astype(np.intp))
