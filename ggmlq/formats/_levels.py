"""Nearest levels: of FP4, and of IQ4 with the search for a scale.

In the words of ``_program.py``; the sums run in ggml's order.
"""

from __future__ import annotations

import numpy as np

from ._extremes import extreme
from ._program import Tile, Vector, absolute, get, pick, put, rank, smaller, where, zeros
from ._search import TINY
from ._tables import FP4, IQ4

# Between level i and level i + 1; a value just there belongs to the upper one.
MIDDLES = ((IQ4[:-1].astype(np.int16) + IQ4[1:]) / 2).astype(np.float32)
LEVELS = IQ4.astype(np.float32)
MAGNITUDES = FP4[:8].astype(np.float32)


def nearest_fp4(v: Vector, scale: Vector) -> Vector:
    """Codes of the levels ``scale * FP4`` nearest to v; a tie goes to the smaller magnitude.

    The distance is formed in float32 as ggml forms it, level by level: rounding decides ties.
    """
    size = absolute(v)
    best = size
    code = where(size < 0, 1, 0)
    for i in range(1, 8):
        distance = absolute(scale * MAGNITUDES[i] - size)
        closer = distance < best
        best = smaller(distance, best)
        code = where(closer, i, code)
    return where((v < 0) & (code > 0), code | 8, code)


def put_nearest(x: Tile, codes: Tile, n: int, inverse: Vector) -> None:
    """Codes for an inverse scale."""
    for i in range(n):
        put(codes, i, rank(inverse * get(x, i), MIDDLES))


def fit_levels(x: Tile, w: Tile, n: int) -> Vector:
    """The scale of ``x ~ scale * level``: sixteen candidates, each refitted to the levels it gives."""
    largest = extreme(x, n)
    lx, l2 = _moments(x, w, n, np.float32(1) / (-largest / LEVELS[0]))
    scale = where(l2 > 0, lx / l2, np.float32(0))
    best = scale * lx
    for step in range(-7, 8):
        lx, l2 = _moments(x, w, n, (np.float32(step) + LEVELS[0]) / largest)
        better = (l2 > 0) & (lx * lx > best * l2)
        scale = where(better, lx / l2, scale)
        best = where(better, scale * lx, best)
    return where(absolute(largest) < TINY, np.float32(0), scale)


def _moments(x: Tile, w: Tile, n: int, inverse: Vector) -> tuple[Vector, Vector]:
    """Sums of ``w x l`` and ``w l l`` for the levels l that an inverse scale gives."""
    lx = zeros(x)
    l2 = zeros(x)
    for i in range(n):
        level = pick(inverse * get(x, i), MIDDLES, LEVELS)
        weighted = get(w, i) * level
        lx = lx + weighted * get(x, i)
        l2 = l2 + weighted * level
    return lx, l2
