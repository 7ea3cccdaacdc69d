"""The oracle's sums in halves, as llama.cpp makes them for f16 weights on a CPU with AVX512-FP16.

Four vectors of 32 halves take 128 products a step, each fused and rounded once. At the end the vectors are
added in pairs, and so are the two sides of what is left, down to one lane; columns beyond the last whole step
are added to that in floats. (``ggml_vec_dot_f16`` since March 2026; ``_mm512_reduce_add_ph`` by gcc.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
VECTORS, LANES = 4, 32
STEP = VECTORS * LANES
AT_ONCE = 1 << 14  # elements of a result, each with its 128 lanes


def product(x: Wide, w: Wide) -> Wide:
    """``x [M, K] @ w [N, K].T`` of halves."""
    y = np.empty((len(x), len(w)))
    rows = max(1, AT_ONCE // max(len(w), 1))
    for start in range(0, len(x), rows):
        y[start : start + rows] = _rows(x[start : start + rows], w)
    return y


def _rows(x: Wide, w: Wide) -> Wide:
    whole = x.shape[1] // STEP * STEP
    lanes = np.zeros((len(x), len(w), STEP))
    for at in range(0, whole, STEP):
        step = slice(at, at + STEP)
        lanes = _half(lanes + x[:, None, step] * w[:, step])  # exact in float64: 22 bits beside 11
    while lanes.shape[-1] > 1:
        width = lanes.shape[-1] // 2
        lanes = _half(lanes[..., :width] + lanes[..., width:])
    rest: Wide = lanes[..., 0] + x[:, whole:] @ w[:, whole:].T
    return rest


def _half(values: Any) -> Wide:
    wide: Wide = values.astype(np.float16).astype(np.float64)
    return wide
