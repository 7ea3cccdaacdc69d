"""Floats x to codes, compiled, with counts of what did not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...gru.diagnostics import FAR, TALLIED, far_ends
from ...gru.run import Call
from ...threads import share
from ..machine.jit import jit

AT, AT_FAR = TALLIED.index("x"), TALLIED.index(FAR)
MOST = 2.0**41  # codes that are counted as far lie below
GRAIN = 1 << 14  # numbers that a thread takes at a time


def encoded(call: Call) -> NDArray[np.int64]:
    """The codes of x [T, N, C]; adds to the counts."""
    t, n, c = call.x.shape
    return store(call, 0, np.dtype(np.int64), c).reshape(t, n, c)


def store(call: Call, shift: int, dtype: Any, pitch: int) -> NDArray[Any]:
    """The codes of x and a shift, [T · N, pitch] of a dtype; adds to the counts."""
    fmt, (t, n, c) = call.plan.x, call.x.shape
    made, x = np.empty((t * n, pitch), dtype), call.x.reshape(t * n, c)
    count = np.zeros((t * n, 2), np.int64)
    scale = x.dtype.type(np.ldexp(1.0, fmt.exponent))
    ends = (fmt.low, fmt.high, *far_ends(call.cell, fmt))

    def work(first: int, stop: int) -> None:
        _encode(x, made, scale, fmt.zero, shift, ends, call.even, count, first, stop)

    share(work, t * n, max(1, GRAIN // c))
    call.counts[[AT, AT_FAR]] += count.sum(0)
    return made


@jit
def _encode(
    x: Any,
    made: Any,
    scale: Any,
    zero: int,
    shift: int,
    ends: Any,
    even: bool,
    count: Any,
    first: int,
    stop: int,
) -> None:
    low, high, far_low, far_high = ends
    columns = x.shape[1]
    for row in range(first, stop):
        moved, far, line, to = 0, 0, x[row], made[row]
        for i in range(columns):
            v = line[i] * scale
            whole = np.rint(v) if even else away(v)
            # Beyond every format and everything far the sum is no matter: it only has to fit an integer.
            code = np.int64(min(max(whole, -MOST), MOST)) + zero
            inside = min(max(code, low), high)
            moved += code != inside
            far += code < far_low or code > far_high
            to[i] = inside + shift
        to[columns:] = 0
        count[row, 0] = moved
        count[row, 1] = far


@jit
def away(v: Any) -> Any:
    """The whole number next to a float, ties away from zero; infinities stay."""
    size = np.floor(abs(v))
    if abs(v) - size >= 0.5:
        size += 1
    return -size if v < 0 else size
