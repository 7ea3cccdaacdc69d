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
MOST = 2**22  # codes; float32 has every one
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
    low, high = (int(np.clip(end, -MOST, MOST)) for end in far_ends(call.cell, fmt))
    ends = tuple(np.int32(end) for end in (fmt.low, fmt.high, low, high))
    zero, more = np.int32(fmt.zero), np.int32(shift)

    def work(first: int, stop: int) -> None:
        _encode(x, made, scale, zero, more, ends, call.even, count, first, stop)

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
    most, half = x.dtype.type(MOST), x.dtype.type(0.5)
    for row in range(first, stop):
        moved, far, line, to = np.int32(0), np.int32(0), x[row], made[row]
        for i in range(line.size):
            v = line[i] * scale
            v = -most if v < -most else most if v > most else v  # beyond every format the sum is no matter
            size = np.floor(abs(v))
            if not even:
                size += np.floor(abs(v) - size + half)  # exact: both are below 1
            whole = np.rint(v) if even else np.copysign(size, v)
            code = np.int32(whole) + zero
            inside = low if code < low else high if code > high else code
            moved += np.int32(code != inside)
            far += np.int32(code < far_low) + np.int32(code > far_high)
            to[i] = inside + shift
        to[line.size :] = 0
        count[row, 0] = moved
        count[row, 1] = far
