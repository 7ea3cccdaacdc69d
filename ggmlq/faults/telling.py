"""An input on which two faults differ that look alike on the one at hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..ops import linear
from .survey import Case

ROWS = 33  # of activations: above the tiles of most kernels, and no multiple of one


def telling_input(case: Case, fault: str, others: tuple[str, ...]) -> NDArray[np.float32] | None:
    """Activations [33, K] of which the product shows more than the given ones; None if they don't.

    Normal data has no zero block, no equal rows, no vanishing sum; a ramp over K makes blocks
    differ in size and a row of ones shows the offsets alone.
    """
    k = case.x.shape[1]
    if k == 0:
        return None
    rng = np.random.default_rng(20_260_101)
    x = rng.standard_normal((ROWS, k)).astype(np.float32) * np.linspace(0.5, 2, k, dtype=np.float32)
    x[-1] = 1
    x[-2] = np.where(np.arange(k) % 2, -1, 1)
    x[-3] = np.arange(k) % 32 == 5
    finite = np.isfinite(linear(x, case.q)).all()
    return x if finite and fault not in others else None
