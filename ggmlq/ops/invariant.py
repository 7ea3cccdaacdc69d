"""Products on a GPU of which no row depends on the rows beside it: in pieces of one size, the last filled up.

Kernels there choose tiles, and how they share sums along K, by the number of rows. In pieces of ``ROWS`` rows
that choice is always the same. Experts are multiplied one row at a time, since all rows of all experts share
one plan. On the CPU kernels themselves have this property (``Rung.invariant``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base.devices import namespace
from ..dispatch import ladder
from ..dispatch.ladder import Problem

ROWS = 64


@cache
def kernel_of(problem: Problem, kernel: str, arithmetic: str | None) -> str:
    """The kernel of all pieces, the same while the process lives: what is timed later changes no bits."""
    return ladder.choose(problem.with_rows(ROWS), kernel, arithmetic).name


def by_pieces(x: Any, n: int, dtype: Any, product: Callable[[Any], Any]) -> Any:
    """``product(x)`` [..., N] of x [..., K], floats or codes with scales, ``ROWS`` rows at a time."""
    m = math.prod(x.shape[:-1])
    floats = not hasattr(x, "codes")
    rows = x.reshape(m, x.shape[-1]) if floats else x.as_rows()
    xp = namespace(x if floats else x.codes)
    y = xp.empty((m, n), dtype)
    for start in range(0, m, ROWS):
        count = min(ROWS, m - start)
        part = rows[start : start + ROWS] if count == ROWS and floats else _filled(xp, rows, start, m)
        y[start : start + count] = product(part)[:count]
    return y.reshape(*x.shape[:-1], n)


def _filled(xp: Any, rows: Any, start: int, m: int) -> Any:
    """A piece of rows, the last of them repeated where there are no more; codes bring their scales."""
    return rows[xp.minimum(xp.arange(start, start + ROWS), m - 1)]


def by_uses(x: Any, ids: Any, n: int, dtype: Any, product: Callable[[Any, Any], Any]) -> Any:
    """``product(x, ids)`` [T, U, N] with experts, for rows [T or T·U, K], one use at a time."""
    t, u = ids.shape
    y = namespace(ids).empty((t, u, n), dtype)
    per = t * u // max(len(x), 1)
    for use in np.ndindex(t, u):
        row = (use[0] * u + use[1]) // per
        at = tuple(slice(i, i + 1) for i in use)
        y[at] = product(x[row : row + 1], ids[at])
    return y
