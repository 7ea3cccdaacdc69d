"""The doctor's telling input: activations on which faults differ that look alike on the user's x."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray

ROWS = 33  # of activations: above the tiles of most kernels, and no multiple of one


def telling_input(q: QuantArray) -> NDArray[np.float32]:
    """Activations [33, K] whose products with q [N, K] show every mistake that they can show.

    Normal data has no empty block, no equal rows and no vanishing sum; growing along K it makes
    blocks differ in size. Three rows isolate a cause each: the offsets alone show in a row of ones,
    the codes without the offsets in alternating signs, and the order of codes in single elements.
    """
    k = q.shape[-1]
    rng = np.random.default_rng(20_260_101)
    x = rng.standard_normal((ROWS, k)).astype(np.float32) * np.linspace(0.5, 2, k, dtype=np.float32)
    x[-1] = 1
    x[-2] = np.where(np.arange(k) % 2, -1, 1)
    x[-3] = np.arange(k) % 32 == 5
    return x
