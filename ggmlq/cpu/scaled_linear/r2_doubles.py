"""Sum integers in float64, which is exact as long as a sum stays below 2**53, with NumPy's products.

Changed: codes less their zero points become float64, not floats with their scales. The sum of a group of K
that shares its scales is then an integer, is rounded to float32 once, and meets both scales in one fused
multiplication: the bits of every other exact rung.

Why it helps: for integers of 16 bits there is no instruction with sums that are wide enough, while a
BLAS in float64 has all the machine's vectors.

Limited by products of float64, half as many as of float32, and by short groups: each is a product of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix, ScaledArray
from ...base.threads import share
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..machine.jit import jit

SLAB_BYTES = 16 << 20  # of weights as float64
EXACT = 2.0**53  # integers that float64 holds


def refuses(problem: ScaledLinear) -> str | None:
    if not problem.integer:
        return "sums of floats are not exact in float64 either"
    if problem.accumulate not in (None, "int64"):
        return "it sums integers exactly, as in int64"
    return None


@register(__name__, __doc__, arithmetic="codes", accumulate="float64, exact", refuses=refuses, invariant=True)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    a, b = x.matrix(), w.matrix()
    n, k = b.over.rows, b.over.columns
    out[...] = 0
    if not out.size or not k:
        return
    group = min(a.over.c, b.over.c)
    left = _wide(a, slice(0, a.over.rows))
    step = max(1, min(n, SLAB_BYTES // (8 * k)))
    most = _largest(left)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        right = _wide(b, rows)
        chunk = max(1, int(EXACT // max(most * _largest(right), 1)))
        for first in range(0, k, group):
            whole = _sum(left, right, first, min(first + group, k), chunk)
            _add(whole, _scales(a, slice(0, a.over.rows), first), _scales(b, rows, first), out[:, rows])


def _wide(m: Matrix, rows: slice) -> NDArray[np.float64]:
    """Codes less their zero points."""
    values: NDArray[np.float64] = m.codes[rows].astype(np.float64)
    if m.zeros is not None:
        tiles = np.arange(rows.start, rows.stop) // m.over.r
        columns = np.arange(m.over.columns) // m.over.c
        values -= m.zeros[tiles[:, None], columns]
    return values


def _largest(values: NDArray[np.float64]) -> float:
    return float(max(values.max(initial=0), -values.min(initial=0)))


def _sum(left: Any, right: Any, first: int, stop: int, chunk: int) -> NDArray[Any]:
    """The exact sums of a group as float32."""
    if stop - first <= chunk:
        exact: NDArray[Any] = (left[:, first:stop] @ right[:, first:stop].T).astype(np.float32)
        return exact
    total = np.zeros((len(left), len(right)), np.int64)
    for start in range(first, stop, chunk):
        part = slice(start, min(start + chunk, stop))
        total += (left[:, part] @ right[:, part].T).astype(np.int64)
    return total.astype(np.float32)


def _scales(m: Matrix, rows: slice, first: int) -> NDArray[np.float32]:
    """The scales of some rows, for the group that begins at column ``first``."""
    return np.ascontiguousarray(m.scales[np.arange(rows.start, rows.stop) // m.over.r, first // m.over.c])


def _add(whole: Any, x_scales: Any, w_scales: Any, out: Any) -> None:
    fused = kernel()
    share(lambda start, stop: fused(whole, x_scales, w_scales, out, start, stop), len(whole))


@cache
def kernel() -> Any:
    """Compiled: rows ``start`` … ``stop`` of sums, times both scales, added to the result."""
    from ..machine.intrinsics import fma  # Numba's names: only for a process that compiles

    def fused(whole: Any, x_scales: Any, w_scales: Any, out: Any, start: int, stop: int) -> None:
        for i in range(start, stop):
            for j in range(len(w_scales)):
                out[i, j] = fma(whole[i, j], x_scales[i] * w_scales[j], out[i, j])

    return jit(fused)
