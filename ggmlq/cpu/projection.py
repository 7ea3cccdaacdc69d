"""Random sums of a product's rows, by which a trace checks all elements of the product with one pass over w.

For random signs r over the rows of x, ``Σ r[m]·y[m, n]`` must be ``(Σ r[m]·x̂[m])·w[n]``, where x̂ are the
activations as codes and scales, rounded as the judged kernel rounds them. Two such sums stand for any number
of rows: they cost N·K, for decoding the weights once, instead of M·N·K. A wrong element makes the sum of its
column wrong; ``trace/judging.py`` then looks for the column and the row.

Sums are float64. The compiled quantizer takes the float32 steps of ``reference.runs``, with the same codes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.threads import share
from .machine.jit import jit

Wide = NDArray[np.float64]
Floats = NDArray[np.float32]

INVERSES = ("127/amax", "1/(amax/127)", "x/(amax/127)", "-127/extreme")
SLAB = 1 << 21  # weights decoded at a time
REASSOCIATED = {"reassoc", "contract", "nsz"}  # sums of float64 in any order; NaN stays NaN
LIMIT = np.float32(127)


@jit
def _quantize(x: Any, how: Any, scales: Any, codes: Any, start: int, stop: int) -> None:
    """Rows ``start`` … ``stop`` of x [M, K]: codes and unrounded scales."""
    run, inverse_kind, away, inverted = how
    runs = x.shape[1] // run
    for m in range(start, stop):
        for g in range(runs):
            extreme = np.float32(0)
            for i in range(g * run, (g + 1) * run):
                if abs(x[m, i]) > abs(extreme):
                    extreme = x[m, i]
            amax = abs(extreme)
            inverse = (np.float32(-127) / extreme) if inverse_kind == 3 else (LIMIT / amax)
            d = (np.float32(1) / inverse) if inverted else (amax / LIMIT)
            if inverse_kind == 1:
                inverse = np.float32(1) / d
            if amax == 0:
                d, inverse = np.float32(0), np.float32(0)
            scales[m, g] = d
            for i in range(g * run, (g + 1) * run):
                v = x[m, i] / d if inverse_kind == 2 else x[m, i] * inverse
                if amax == 0 or np.isnan(v):
                    v = np.float32(0)
                v = min(max(v, -LIMIT), LIMIT)
                if away:
                    whole = np.trunc(v)
                    codes[m, i] = whole + (
                        np.copysign(np.float32(1), v) if abs(v - whole) >= np.float32(0.5) else 0
                    )
                else:
                    codes[m, i] = np.rint(v)


def quantize(x: Floats, how: Any) -> tuple[NDArray[np.int8], Floats]:
    """The codes [M, K] and the unrounded scales [M, K // run] of rows without NaN or infinity.

    ``how``: a ``reference.Quantizer``.
    """
    codes = np.empty(x.shape, np.int8)
    scales = np.empty((len(x), x.shape[1] // how.run), np.float32)
    words = (how.run, INVERSES.index(how.inverse), how.rounding == "away", how.d == "1/inverse")
    share(partial(_quantize, x, words, scales, codes), len(x))
    return codes, scales


def _sum_coded(codes: Any, scales: Any, signs: Any, sums: Any, start: int, stop: int) -> None:
    run = codes.shape[1] // scales.shape[1]
    for m in range(codes.shape[0]):
        for g in range(start, stop):
            a, b = signs[0, m] * scales[m, g], signs[1, m] * scales[m, g]
            for i in range(g * run, (g + 1) * run):
                sums[0, i] += a * codes[m, i]
                sums[1, i] += b * codes[m, i]


_sum_of_codes = jit(_sum_coded, fastmath=REASSOCIATED)


def sum_of_codes(codes: NDArray[np.int8], scales: Wide, signs: Wide) -> Wide:
    """``signs [2, M] @ (codes · scales) [M, K]`` in float64."""
    sums = np.zeros((2, codes.shape[1]))
    share(partial(_sum_of_codes, codes, scales, signs, sums), scales.shape[1], 8)
    return sums


def _multiply(codes: Any, scales: Any, w: Any, out: Any, lengths: Any, start: int, stop: int) -> None:
    row = np.empty(w.shape[1])
    run = codes.shape[1] // scales.shape[1]
    for m in range(start, stop):
        length = 0.0
        for g in range(scales.shape[1]):
            for i in range(g * run, (g + 1) * run):
                row[i] = codes[m, i] * scales[m, g]
                length += row[i] * row[i]
        lengths[m] = length
        for n in range(w.shape[0]):
            total = 0.0
            for k in range(w.shape[1]):
                total += row[k] * w[n, k]
            out[m, n] = total


_products = jit(_multiply, fastmath=REASSOCIATED)


def products(codes: NDArray[np.int8], scales: Wide, w: Wide) -> tuple[Wide, Wide]:
    """``(codes · scales) [M, K] @ w [N, K].T`` for few n, and the squared length of each row of the left."""
    out, lengths = np.empty((len(codes), len(w))), np.empty(len(codes))
    share(partial(_products, codes, scales, w, out, lengths), len(codes))
    return out, lengths


def _sum_rows(x: Any, signs: Any, sums: Any, start: int, stop: int) -> None:
    for m in range(x.shape[0]):
        a, b = signs[0, m], signs[1, m]
        for i in range(start, stop):
            sums[0, i] += a * x[m, i]
            sums[1, i] += b * x[m, i]


_sum_of_rows = jit(_sum_rows, fastmath=REASSOCIATED)


def sum_of_rows(x: Floats, signs: Wide) -> Wide:
    """``signs [2, M] @ x [M, N]`` in float64."""
    sums = np.zeros((2, x.shape[1]))
    share(partial(_sum_of_rows, x, signs, sums), x.shape[1], 512)
    return sums


def _project_rows(w: Any, v: Any, out: Any, norms: Any, start: int, stop: int) -> None:
    for n in range(start, stop):
        a, b, c = 0.0, 0.0, 0.0
        for k in range(w.shape[1]):
            value = float(w[n, k])
            a += v[0, k] * value
            b += v[1, k] * value
            c += value * value
        out[0, n], out[1, n], norms[n] = a, b, c


_project = jit(_project_rows, fastmath=REASSOCIATED)


def project(q: QuantArray, v: Wide) -> tuple[Wide, Wide]:
    """``v [2, K] @ q [N, K].T`` in float64, and the squared length of each row of q."""
    n, k = q.shape
    out, norms = np.empty((2, n)), np.empty(n)
    step = max(1, SLAB // k)
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        w = q[rows].dequantize(np.float32)
        grain = max(1, math.ceil((1 << 16) / k))
        share(partial(_project, w, v, out[:, rows], norms[rows]), len(w), grain)
    return out, norms
