"""Attention in float64, softmax(scale·q·kᵀ + mask)·v: the oracle of large FLASH_ATTN_EXT nodes in a trace.

It goes row by row and holds the scores of one row, so no array [heads, M, n] is ever made. Scores that the
mask hides, half of them under a causal one, are not computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.threads import share
from ..machine.jit import jit

Wide = NDArray[np.float64]
REASSOCIATED = {"reassoc", "contract", "nsz"}  # sums in any order; NaN and infinity are kept


def _attend(q: Any, k: Any, v: Any, mask: Any, slopes: Any, sinks: Any, how: Any, out: Any,
            start: int, stop: int) -> None:  # fmt: skip
    """Rows ``start`` … ``stop`` of all [heads · M] of one stream."""
    scale, cap, hidden = how
    rows, n = q.shape[1], k.shape[1]
    scores = np.empty(n)
    for at in range(start, stop):
        h, m = at // rows, at % rows
        k_head, mask_head = h * k.shape[0] // q.shape[0], h * mask.shape[0] // q.shape[0]
        largest = sinks[h]
        for j in range(n):
            if hidden and mask[mask_head, m, j] == -np.inf:
                scores[j] = -np.inf
                continue
            total = 0.0
            for i in range(q.shape[2]):
                total += q[h, m, i] * k[k_head, j, i]
            total *= scale
            if cap:
                total = cap * np.tanh(total)
            scores[j] = total + (slopes[h] * mask[mask_head, m, j] if hidden else 0.0)
            largest = max(largest, scores[j])
        weight = np.exp(sinks[h] - largest)
        for i in range(v.shape[2]):
            out[h, m, i] = 0.0
        for j in range(n):
            if scores[j] == -np.inf:
                continue
            softened = np.exp(scores[j] - largest)
            weight += softened
            for i in range(v.shape[2]):
                out[h, m, i] += softened * v[k_head, j, i]
        for i in range(v.shape[2]):
            out[h, m, i] /= weight


_rows = jit(_attend, fastmath=REASSOCIATED)


def attend(q: Wide, k: Wide, v: Wide, mask: Wide | None, slopes: Wide, sinks: Wide, scale: float, cap: float,
           ) -> Wide:  # fmt: skip
    """Attention of a stream: q [heads, M, D], k and v [heads or fewer, n, D], mask [heads or fewer, M, n].

    ``slopes`` [heads] multiply the mask. ``sinks`` [heads]: the score of one more key, which has a value of
    zeros; minus infinity for none. Every row that attends to something is finite where its operands are.
    With a ``cap`` the scale is divided by it already.
    """
    out = np.empty((*q.shape[:2], v.shape[2]))
    how = (float(scale), float(cap), mask is not None)
    masks = np.zeros((1, 1, 1)) if mask is None else mask
    q, k, v, masks = (np.ascontiguousarray(one) for one in (q, k, v, masks))
    share(partial(_rows, q, k, v, masks, slopes, sinks, how, out), q.shape[0] * q.shape[1], 8)
    return out
