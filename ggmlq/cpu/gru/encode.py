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


def encoded(call: Call) -> NDArray[np.int32]:
    """The codes of x [T, N, C]; adds to the counts."""
    fmt = call.plan.x
    codes = np.empty(call.x.shape, np.int32)
    flat, made = call.x.reshape(-1), codes.reshape(-1)
    count = np.zeros((-(-flat.size // GRAIN) + 1, 2), np.int64)
    scale = flat.dtype.type(np.ldexp(1.0, fmt.exponent))

    ends = (fmt.low, fmt.high, *far_ends(call.cell, fmt))

    def work(first: int, stop: int) -> None:
        _encode(flat, made, scale, fmt.zero, ends, call.even, count, first, stop)

    share(work, flat.size, GRAIN)
    call.counts[[AT, AT_FAR]] += count.sum(0)
    return codes


@jit
def _encode(
    x: Any, codes: Any, scale: Any, zero: int, ends: Any, even: bool, count: Any, first: int, stop: int
) -> None:
    moved, far = 0, 0
    low, high, far_low, far_high = ends
    for i in range(first, stop):
        v = x[i] * scale
        whole = np.rint(v) if even else away(v)
        # Far beyond every format the sum is no matter: it only has to fit an integer.
        code = np.int64(min(max(whole, -MOST), MOST)) + zero
        inside = min(max(code, low), high)
        moved += code != inside
        far += code < far_low or code > far_high
        codes[i] = inside
    count[first // GRAIN, 0] = moved
    count[first // GRAIN, 1] = far


@jit
def away(v: Any) -> Any:
    """The whole number next to a float, ties away from zero; infinities stay."""
    size = np.floor(abs(v))
    if abs(v) - size >= 0.5:
        size += 1
    return -size if v < 0 else size
