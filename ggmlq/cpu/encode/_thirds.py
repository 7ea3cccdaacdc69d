"""The split of sorted weights in three, for the iq1 encoders: the lowest count -1, the highest 1, the rest 0.

All borders between the sorted weights are tried, with levels an eighth higher or lower; the best
fit wins. A run is a lane, and its sums stand in ggml's order. A choice is the number
``(low * 64 + high) * 4 + down``: the lowest ``low`` weights count -1, those from ``high`` on 1;
bit 1 of ``down`` lowers the levels of the first eight weights, bit 0 those of the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..machine.jit import inline, jit
from ._program import LANES, get, put, some, where, zeros

ZERO, ONE, TWO, EIGHTH = np.float32(0), np.float32(1), np.float32(2), np.float32(0.125)
LOWEST = np.finfo(np.float32).min


@inline
def sort(x: Any, start: Any, order: Any) -> None:
    """Write to ``order`` the places of a run, sorted by its values; of equal values the first comes first."""
    for i in range(len(order)):
        j = i
        while j > 0 and x[start + i] < x[start + order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@inline
def keep_better(xq: Any, qq: Any, choice: Any, best: Any) -> None:
    """Write candidates over worse ones in ``best``, which holds score, scale and choice."""
    better = (qq > ZERO) & (xq * xq > get(best, 0) * qq)
    if some(better):
        scale = xq / qq
        put(best, 0, where(better, scale * xq, get(best, 0)))
        put(best, 1, where(better, scale, get(best, 1)))
        put(best, 2, where(better, np.float32(choice), get(best, 2)))


@inline
def begin(best: Any) -> None:
    put(best, 0, zeros(best) + LOWEST)
    put(best, 1, zeros(best))
    put(best, 2, zeros(best) - ONE)


@inline
def mid_of(s: Any) -> Any:
    """The middle level: lowered for an odd s."""
    return -EIGHTH if s % 2 else EIGHTH


@jit
def split_alike(x: Any, weight: Any, first: Any, best: Any) -> None:
    """Split sorted runs where all levels are moved alike (iq1_s), by differences of running sums."""
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
def split_by_halves(x: Any, weight: Any, first: Any, best: Any) -> None:
    """Split sorted runs of two eights with levels moved separately (iq1_m), by running sums of each eight.

    ``first`` is 1 where a weight is of the first eight. With top level t, each eight has the sums
    ``t X - (x[low] + x[high])`` and ``t t W + (l l - m m) w[low] + (m m - t t) w[high]``, where l
    and m are the lower levels, X and W the whole sums.
    """
    count = len(x)
    xs, ws = np.zeros((2, 2, count + 1, LANES), np.float32)
    for j in range(count):
        early, w = get(first, j) > ZERO, get(weight, j)
        wx = w * get(x, j)
        for eight in range(2):
            inside = early if eight == 0 else ~early
            put(xs[eight], j + 1, where(inside, get(xs[eight], j) + wx, get(xs[eight], j)))
            put(ws[eight], j + 1, where(inside, get(ws[eight], j) + w, get(ws[eight], j)))
    top_x, low_w, both_x, both_w = np.empty((4, 4, LANES), np.float32)  # [eight * 2 + down, lane]
    for s in range(4):
        put(top_x, s, (mid_of(s) + ONE) * get(xs[s // 2], count))
    begin(best)
    for low in range(count + 1):
        for s in range(4):
            whole = (mid_of(s) + ONE) * get(ws[s // 2], count) * (mid_of(s) + ONE)
            put(low_w, s, (ONE - TWO * mid_of(s)) * get(ws[s // 2], low) + whole)
        for high in range(low, count + 1):
            for s in range(4):
                both = get(xs[s // 2], low) + get(xs[s // 2], high)
                put(both_x, s, get(top_x, s) - both)
                put(both_w, s, (-ONE - TWO * mid_of(s)) * get(ws[s // 2], high) + get(low_w, s))
            for down in range(4):
                one, two = down // 2, 2 + down % 2
                xq, qq = get(both_x, one) + get(both_x, two), get(both_w, one) + get(both_w, two)
                keep_better(xq, qq, (low * 64 + high) * 4 + down, best)
