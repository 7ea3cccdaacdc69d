"""The scale of magnitudes stored as whole steps, fitted by importance."""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ._rounding import nearest

ZERO = np.float32(0)


@jit
def _error(x, weight, inverse, scale, most, wraps):
    """Weighted squares of what a scale leaves over."""
    total = ZERO
    for i in range(len(x)):
        step = nearest(inverse * x[i])
        step = step & 255 if wraps else min(np.int32(most), step)
        left = x[i] - scale * np.float32(step)
        total += weight[i] * left * left
    return total


@jit
def steps(x, weight, most):
    """The scale of ``x [n]`` with steps up to ``most``; the largest x is not tiny.

    Steps are bytes in ggml and meant for x >= 0: of a negative x (a weight stored with the wrong
    sign), the step wraps to 255, 254 … wherever it is stored.
    """
    largest = ZERO
    for i in range(len(x)):
        largest = max(largest, x[i])
    inverse = np.float32(most) / largest
    least = _error(x, weight, inverse, np.float32(1) / inverse, most, True)
    for t in range(-4, 5):
        if t:
            tried = (np.float32(0.1) * np.float32(t) + np.float32(most)) / largest
            error = _error(x, weight, tried, np.float32(1) / tried, most, False)
            if error < least:
                least, inverse = error, tried
    L = np.empty(len(x), np.uint8)
    xl, ll = ZERO, ZERO
    for i in range(len(x)):
        step = min(np.int32(most), nearest(inverse * x[i]))
        L[i] = step
        l = np.float32(step)
        xl += weight[i] * x[i] * l
        ll += weight[i] * l * l
    for _ in range(5):
        changed = False
        for i in range(len(x)):
            l = np.float32(L[i])
            w = weight[i]
            xl_without = xl - w * x[i] * l
            ll_without = ll - w * l * l
            if xl_without > ZERO and ll_without > ZERO:
                step = min(np.int32(most), nearest(x[i] * ll_without / xl_without))
                if step != L[i]:
                    l = np.float32(step)
                    xl_new = xl_without + w * x[i] * l
                    ll_new = ll_without + w * l * l
                    if xl_new * xl_new * ll > xl * xl * ll_new:
                        L[i] = step
                        xl, ll = xl_new, ll_new
                        changed = True
        if not changed:
            break
    return xl / ll if ll > ZERO else ZERO
