"""Runs of weights split in three: the lowest count -1, the highest 1, those between 0.

All borders between the sorted weights are tried, with levels an eighth higher or lower; the best
fit wins. A run is a lane, and its sums stand in ggml's order. A choice is the number
``(low * 64 + high) * 4 + down``: the lowest ``low`` weights count -1, those from ``high`` on 1;
bit 1 of ``down`` lowers the levels of the first eight weights, bit 0 those of the rest.
"""

from __future__ import annotations

import numpy as np

from ..jit import inline, jit
from ._vectors import LANES
from ._words import get, put, some, where, zero

ZERO, ONE, EIGHTH, LOWEST = np.float32(0), np.float32(1), np.float32(0.125), np.finfo(np.float32).min


@inline
def sort(x, start, order):
    """The places in a run in the order of its values; of equal values the first comes first."""
    for i in range(len(order)):
        j = i
        while j > 0 and x[start + i] < x[start + order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@inline
def keep_better(xq, qq, choice, best):
    """Candidates take the place of worse ones; ``best`` holds score, scale and choice."""
    better = (qq > ZERO) & (xq * xq > get(best, 0) * qq)
    if some(better):
        scale = xq / qq
        put(best, 0, where(better, scale * xq, get(best, 0)))
        put(best, 1, where(better, scale, get(best, 1)))
        put(best, 2, where(better, np.float32(choice), get(best, 2)))


@inline
def begin(best):
    put(best, 0, zero(best) + LOWEST)
    put(best, 1, zero(best))
    put(best, 2, zero(best) - ONE)


@jit
def split_alike(x, weight, first, best):
    """Sorted runs whose levels are all moved alike (iq1_s), by differences of running sums."""
    count = len(x)
    xs, ws = np.zeros((count + 1, LANES), np.float32), np.zeros((count + 1, LANES), np.float32)
    for j in range(count):
        put(xs, j + 1, get(xs, j) + get(weight, j) * get(x, j))
        put(ws, j + 1, get(ws, j) + get(weight, j))
    begin(best)
    for low in range(count + 1):
        for high in range(low, count + 1):
            for down in range(0, 4, 3):
                mid = -EIGHTH if down else EIGHTH
                xq = get(xs, low) * (mid - ONE) + (get(xs, high) - get(xs, low)) * mid
                xq = xq + (get(xs, count) - get(xs, high)) * (mid + ONE)
                qq = get(ws, low) * (mid - ONE) * (mid - ONE) + (get(ws, high) - get(ws, low)) * mid * mid
                qq = qq + (get(ws, count) - get(ws, high)) * (mid + ONE) * (mid + ONE)
                keep_better(xq, qq, (low * 64 + high) * 4 + down, best)


@jit
def split_by_halves(x, weight, first, best):
    """Sorted runs of two eights moved each its own way (iq1_m), weight by weight.

    ``first`` is 1 where a weight is of the first eight. What a candidate has in common with the
    one before, up to the border between them, is not added again.
    """
    count = len(x)
    terms = np.empty((3 * count * 8, LANES), np.float32)  # [level, weight, four of x q and four of q q]
    for level in range(3):
        for j in range(count):
            at, w = (level * count + j) * 8, get(weight, j)
            for down in range(4):
                one = np.float32(level) - ONE + (EIGHTH if down < 2 else -EIGHTH)
                two = np.float32(level) - ONE + (EIGHTH if down % 2 == 0 else -EIGHTH)
                q = where(get(first, j) > ZERO, zero(x) + one, zero(x) + two)
                put(terms, at + down, w * q * get(x, j))
                put(terms, at + 4 + down, w * q * q)
    lows, mids, sums = np.zeros((3, 8, LANES), np.float32)
    begin(best)
    for low in range(count + 1):
        mids[:] = lows
        for high in range(low, count + 1):
            for s in range(8):
                total = get(mids, s)
                for j in range(high, count):
                    total = total + get(terms, (2 * count + j) * 8 + s)
                put(sums, s, total)
            for down in range(4):
                keep_better(get(sums, down), get(sums, 4 + down), (low * 64 + high) * 4 + down, best)
            if high < count:
                for s in range(8):
                    put(mids, s, get(mids, s) + get(terms, (count + high) * 8 + s))
        if low < count:
            for s in range(8):
                put(lows, s, get(lows, s) + get(terms, low * 8 + s))
