"""The searches of ggml's encoders: scale, minimum and codes of least weighted squared error.

Written in the words of ``_program.py``: tiles ``x`` and ``w`` hold one run of weights in each lane and
their importance, ``codes`` receives the codes. Every sum runs in index order and every product
associates as written, which the bytes depend on.

Only what decides the codes of the best candidate (its inverse scale, its minimum) is kept while
candidates are tried; the codes themselves are computed once, at the end.
"""

from __future__ import annotations

import numpy as np

from ._extremes import extreme
from ._program import Tile, Vector, absolute, clamp, get, nearest, put, real, some, where, zeros

TINY = np.float32(1e-15)  # a run whose largest magnitude is smaller counts as zero


def fit_signed(x: Tile, w: Tile, codes: Tile, n: int, top: int) -> Vector:
    """``x ~ scale * (code - top)`` with codes 0 … 2 top - 1: nineteen scales, the best refitted."""
    largest = extreme(x, n)
    keep = np.float32(-top) / largest
    lx, l2 = _moments(x, w, n, top, keep)
    scale = where(l2 != 0, lx / l2, np.float32(0))
    best = scale * lx
    for step in range(-9, 10):
        if step != 0:
            k = -(np.float32(top) + np.float32(0.1) * np.float32(step)) / largest
            lx, l2 = _moments(x, w, n, top, k)
            better = (l2 > 0) & (lx * lx > best * l2)
            keep = where(better, k, keep)
            scale = where(better, lx / l2, scale)
            best = where(better, scale * lx, best)
    flat = absolute(largest) < TINY
    for i in range(n):
        code = clamp(nearest(keep * get(x, i)), -top, top - 1) + top
        put(codes, i, where(flat, 0, code))
    return where(flat, np.float32(0), scale)


def _moments(x: Tile, w: Tile, n: int, top: int, k: Vector) -> tuple[Vector, Vector]:
    """Sums of ``w x l`` and ``w l l`` for the codes l that an inverse scale gives."""
    lx = zeros(x)
    l2 = zeros(x)
    for i in range(n):
        v = get(x, i)
        weight = get(w, i)
        code = real(clamp(nearest(k * v), -top, top - 1))
        lx = lx + weight * v * code
        l2 = l2 + weight * code * code
    return lx, l2


def fit_by_sweeps(x: Tile, w: Tile, codes: Tile, n: int, top: int) -> Vector:
    """The fit of :func:`fit_signed` from one scale; then codes change one by one while that helps.

    A lane in which a sweep changes nothing is done: a further sweep would repeat itself.
    """
    largest = extreme(x, n)
    k = np.float32(-top) / largest
    lx = zeros(x)
    l2 = zeros(x)
    for i in range(n):
        v = get(x, i)
        weight = get(w, i)
        code = clamp(nearest(k * v), -top, top - 1)
        put(codes, i, code + top)
        lx = lx + weight * v * real(code)
        l2 = l2 + weight * real(code) * real(code)
    for _ in range(5):
        changed = zeros(x) > 0
        for i in range(n):
            v = get(x, i)
            weight = get(w, i)
            old = get(codes, i) - top
            rest_lx = lx - weight * v * real(old)
            rest_l2 = l2 - weight * real(old) * real(old)
            new = clamp(nearest(v * rest_l2 / rest_lx), -top, top - 1)
            new_lx = rest_lx + weight * v * real(new)
            new_l2 = rest_l2 + weight * real(new) * real(new)
            better = (rest_lx > 0) & (new != old) & (new_l2 > 0)
            better = better & (new_lx * new_lx * l2 > lx * lx * new_l2)
            put(codes, i, where(better, new, old) + top)
            lx = where(better, new_lx, lx)
            l2 = where(better, new_l2, l2)
            changed = changed | better
        if not some(changed):
            break
    flat = absolute(largest) < TINY
    if some(flat):
        for i in range(n):
            put(codes, i, where(flat, 0, get(codes, i)))
    return where(flat | ~(l2 > 0), np.float32(0), lx / l2)


def fit_offset(
    x: Tile, w: Tile, codes: Tile, aux: Tile, n: int, top: int,
    first: np.float32, step: np.float32, steps: int, linear: bool,
) -> tuple[Vector, Vector]:  # fmt: skip
    """``x ~ scale * code - minimum`` with codes 0 … top and a minimum of at least 0.

    Candidate s spreads the codes over ``top + first + step * s`` steps from the lowest value,
    refits scale and offset, and compares errors: squares, or magnitudes where ``linear``. The
    lowest value is that of the best candidate so far. ``aux`` is room for n vectors. Where all
    values are one, dividing by their range gives infinity, then codes 0 and scale 0, as it should.
    """
    low, high, sum_w, sum_x = _bounds(x, w, n)
    keep = np.float32(top) / (high - low)
    keep_low = low
    scale = np.float32(1) / keep
    for i in range(n):
        put(aux, i, real(clamp(nearest(keep * (get(x, i) - low)), 0, top)))
    best = _error(x, w, aux, n, scale, low, linear)
    for s in range(steps + 1):
        k = (first + step * np.float32(s) + np.float32(top)) / (high - low)
        sum_l = zeros(x)
        sum_l2 = zeros(x)
        sum_lx = zeros(x)
        for i in range(n):
            v = get(x, i)
            code = real(clamp(nearest(k * (v - low)), 0, top))
            put(aux, i, code)
            weighted = get(w, i) * code
            sum_l = sum_l + weighted
            sum_l2 = sum_l2 + weighted * code
            sum_lx = sum_lx + weighted * v
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_lx - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_lx) / det
        above = new_low > 0
        new_scale = where(above, sum_lx / sum_l2, new_scale)
        new_low = where(above, np.float32(0), new_low)
        error = _error(x, w, aux, n, new_scale, new_low, linear)
        better = (det > 0) & (error < best)
        keep = where(better, k, keep)
        keep_low = where(better, low, keep_low)
        best = where(better, error, best)
        scale = where(better, new_scale, scale)
        low = where(better, new_low, low)
    for i in range(n):
        put(codes, i, clamp(nearest(keep * (get(x, i) - keep_low)), 0, top))
    return scale, -low


def _bounds(x: Tile, w: Tile, n: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Lowest value or 0, highest value, sum of w, sum of w x."""
    low = get(x, 0)
    high = low
    sum_w = get(w, 0)
    sum_x = sum_w * low
    for i in range(1, n):
        v = get(x, i)
        low = where(v < low, v, low)
        high = where(v > high, v, high)
        sum_w = sum_w + get(w, i)
        sum_x = sum_x + get(w, i) * v
    return where(low > 0, np.float32(0), low), high, sum_w, sum_x


def _error(x: Tile, w: Tile, codes: Tile, n: int, scale: Vector, low: Vector, linear: bool) -> Vector:
    """Weighted error of ``scale * code + low``: of magnitudes where ``linear``, else of squares."""
    error = zeros(x)
    for i in range(n):
        off = scale * get(codes, i) + low - get(x, i)
        off = absolute(off) if linear else off * off
        error = error + get(w, i) * off
    return error


def fit_positive(x: Tile, w: Tile, codes: Tile, n: int, top: int) -> Vector:
    """``x ~ scale * code`` for x of at least 0 with codes 0 … top: nine scales, then sweeps.

    A candidate spreads the codes over less than half a step beyond top, so none is above it.
    """
    largest = zeros(x)
    for i in range(n):
        largest = where(largest > get(x, i), largest, get(x, i))
    keep = np.float32(top) / largest
    scale = np.float32(1) / keep
    best = zeros(x)
    for i in range(n):
        off = get(x, i) - scale * real(nearest(keep * get(x, i)) & 255)
        best = best + get(w, i) * off * off
    for step in range(-4, 5):
        if step != 0:
            k = (np.float32(0.1) * np.float32(step) + np.float32(top)) / largest
            scale = np.float32(1) / k
            error = zeros(x)
            for i in range(n):
                off = get(x, i) - scale * real(nearest(k * get(x, i)))
                error = error + get(w, i) * off * off
            better = error < best
            best = where(better, error, best)
            keep = where(better, k, keep)
    lx = zeros(x)
    l2 = zeros(x)
    for i in range(n):
        v = get(x, i)
        code = nearest(keep * v)
        put(codes, i, code)
        lx = lx + get(w, i) * v * real(code)
        l2 = l2 + get(w, i) * real(code) * real(code)
    lx, l2 = _sweeps(x, w, codes, n, top, lx, l2)
    flat = largest < TINY
    for i in range(n):
        put(codes, i, where(flat, 0, get(codes, i)))
    return where(flat | ~(l2 > 0), np.float32(0), lx / l2)


def _at_most(codes: Vector, top: int) -> Vector:
    return where(codes < top, codes, top)


def _sweeps(x: Tile, w: Tile, codes: Tile, n: int, top: int, lx: Vector, l2: Vector) -> tuple[Vector, Vector]:
    """Up to five passes in which a code changes where the fit gets better by it."""
    for _ in range(5):
        changed = zeros(x) > 0
        for i in range(n):
            v = get(x, i)
            weight = get(w, i)
            old = get(codes, i)
            rest_lx = lx - weight * v * real(old)
            rest_l2 = l2 - weight * real(old) * real(old)
            new = _at_most(nearest(v * rest_l2 / rest_lx), top)
            new_lx = rest_lx + weight * v * real(new)
            new_l2 = rest_l2 + weight * real(new) * real(new)
            better = (rest_lx > 0) & (rest_l2 > 0) & (new != old)
            better = better & (new_lx * new_lx * l2 > lx * lx * new_l2)
            put(codes, i, where(better, new, old))
            lx = where(better, new_lx, lx)
            l2 = where(better, new_l2, l2)
            changed = changed | better
        if not some(changed):
            break
    return lx, l2
