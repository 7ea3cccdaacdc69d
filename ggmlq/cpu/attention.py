"""softmax(scale·q·kᵀ + mask)·v in float64, row by row: what an attention that is one node is compared with.

A row needs nothing but its scores, so nothing of [heads, M, n] is ever kept; and what a mask hides, half of
a causal one, is not multiplied.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.threads import share
from .machine.jit import jit

Wide = NDArray[np.float64]
REASSOCIATED = {"reassoc", "contract", "nsz"}  # sums in any order; NaN and infinity stay what they are


def _attend(q: Any, k: Any, v: Any, mask: Any, slopes: Any, sinks: Any, how: Any, out: Any,
            start: int, stop: int) -> None:  # fmt: skip
    """Rows ``start`` … ``stop`` of all [heads · M] of one stream."""
    scale, cap, hidden = how
    rows, n = q.shape[1], k.shape[1]
    scores = np.empty(n)
    for at in range(start, stop):
        h, m = at // rows, at % rows
        of_k, of_mask = h * k.shape[0] // q.shape[0], h * mask.shape[0] // q.shape[0]
        largest = sinks[h]
        for j in range(n):
            if hidden and mask[of_mask, m, j] == -np.inf:
                scores[j] = -np.inf
                continue
            total = 0.0
            for i in range(q.shape[2]):
                total += q[h, m, i] * k[of_k, j, i]
            total *= scale
            if cap:
                total = cap * np.tanh(total)
            scores[j] = total + (slopes[h] * mask[of_mask, m, j] if hidden else 0.0)
            largest = max(largest, scores[j])
        weight = np.exp(sinks[h] - largest)
        for i in range(v.shape[2]):
            out[h, m, i] = 0.0
        for j in range(n):
            if scores[j] == -np.inf:
                continue
            share_of_it = np.exp(scores[j] - largest)
            weight += share_of_it
            for i in range(v.shape[2]):
                out[h, m, i] += share_of_it * v[of_k, j, i]
        for i in range(v.shape[2]):
            out[h, m, i] /= weight


_rows = jit(_attend, fastmath=REASSOCIATED)


def attend(q: Wide, k: Wide, v: Wide, mask: Wide | None, slopes: Wide, sinks: Wide, scale: float, cap: float,
           ) -> Wide:  # fmt: skip
    """Of one stream: q [heads, M, D], k and v [heads or fewer, n, D], mask [heads or fewer, M, n].

    ``sinks`` [heads]: a score of each head that attends to nothing; minus infinity for none. Every row that
    attends to something is finite where its operands are. With a ``cap`` the scale is divided by it already.
    """
    out = np.empty((*q.shape[:2], v.shape[2]))
    how = (float(scale), float(cap), mask is not None)
    held = np.zeros((1, 1, 1)) if mask is None else mask
    q, k, v, held = (np.ascontiguousarray(one) for one in (q, k, v, held))
    share(partial(_rows, q, k, v, held, slopes, sinks, how, out), q.shape[0] * q.shape[1], 8)
    return out
