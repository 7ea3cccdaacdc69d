"""Sum 32 products in int32, convert, and add up in float32: the INT8 document's program.

Changed: integers are summed as integers, but only 32 of them; the sums of these chunks are added in
float32. The document's text speaks of int32 over all of K, its program does this.

Why it is here: to be compared. Text and program agree as long as no sum passes 2**24, beyond which float32
does not hold every integer: up to K = 1024 whatever the codes. Beyond, a sum of many positive products is off
by a few units in the last place, and a conversion for each 32 products costs time besides.

Limited by these conversions; asked for with accumulate="fp32_chunks".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix, ScaledArray
from ...base.threads import share
from ...dispatch.ladder import register
from ...dispatch.problems import INT32, ScaledLinear
from ..machine.jit import jit

CHUNK = 32  # products


def refuses(problem: ScaledLinear) -> str | None:
    if problem.accumulate != "fp32_chunks":
        return 'it sums in float32 every 32 products, which is asked for with accumulate="fp32_chunks"'
    if problem.largest_sum / problem.group * CHUNK > INT32:
        return "sums of 32 products of such integers pass int32"
    return None


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32 of 32, float32", refuses=refuses, invariant=True
)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    a, b = x.matrix(), w.matrix()
    group = max(1, min(a.over.c, b.over.c))
    left, right = _whole(a), _whole(b)
    scales = [np.ascontiguousarray(m.row_scales(np)) for m in (a, b)]
    every = a.over.c, b.over.c
    multiply = kernel()
    share(lambda first, stop: multiply(left, right, *scales, every, out, group, first, stop), b.over.rows)


def _whole(m: Matrix) -> NDArray[np.int32]:
    """Codes less their zero points."""
    codes: NDArray[np.int32] = m.codes.astype(np.int32)
    if m.zeros is not None:
        rows = np.arange(m.over.rows) // m.over.r
        codes -= m.zeros[rows[:, None], np.arange(m.over.columns) // m.over.c].astype(np.int32)
    return codes


@cache
def kernel() -> Any:
    """The compiled product of rows ``first`` … ``stop`` of weights with all activations."""
    from ..machine.intrinsics import fma  # Numba's names: only for a process that compiles

    def multiply(
        qa: Any, qb: Any, sa: Any, sb: Any, every: Any, out: Any, group: int, first: int, stop: int
    ) -> None:
        k = qa.shape[1]
        sa_rows, sb_rows = sa.shape[0], sb.shape[0]  # 1 where all rows share
        for n in range(first, stop):
            for m in range(qa.shape[0]):
                total, b = np.float32(0), qb[n]
                a = qa[m]
                for start in range(0, k, group):
                    end, real = min(start + group, k), np.float32(0)
                    for chunk in range(start, end, CHUNK):
                        whole = np.int32(0)
                        for i in range(chunk, min(chunk + CHUNK, end)):
                            whole += np.int32(a[i] * b[i])
                        real += np.float32(whole)
                    scale = sa[m % sa_rows, start // every[0]] * sb[n % sb_rows, start // every[1]]
                    total = fma(real, scale, total)
                out[m, n] = total

    return jit(multiply)
