"""The kernel of short convolutions: each column of a row with those of some rows before it.

A part has some columns of all tokens. Rows before the first token are those of the state; what is kept of
them is x times its factor, as it goes into the sum.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..lanes import load, store
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from .gate import divisor
from .states import COLUMNS, LANES, Convolution

arguments_of = reader(Convolution)


@inner
def _times(x: Any, factor: int, to: Any) -> None:
    """Columns times those at an address; the columns themselves without one."""
    if factor:
        other = floats_at(factor, 1, len(to))[0]
        for i in range(len(to)):
            to[i] = x[i] * other[i]
    else:
        for i in range(len(to)):
            to[i] = x[i]


@inner
def _row(f: Any, t: int, start: int, count: int, to: Any) -> None:
    """The columns of token t, or of the state, as they go into the sum."""
    if t < 0:
        x = floats_at(f.before + 4 * ((f.taps - 1 + t) * f.width + start), 1, count)[0]
        for i in range(count):
            to[i] = x[i]
        return
    x = floats_at(f.x + 4 * (t * f.pitch + start), 1, count)[0]
    _times(x, f.factor + 4 * (t * f.pitch + start) if f.factor else 0, to[:count])


@cache
def convolved(silu: bool) -> Any:
    """Compiled: parts ``first`` … ``stop`` of the columns of ``Convolution``; ``silu``: of results."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        weights, total = np.empty((f.taps, COLUMNS), np.float32), np.zeros(COLUMNS, np.float32)
        rows = np.empty((f.taps, COLUMNS), np.float32)  # the last ones, in turns
        for part in range(first, stop):
            start = part * COLUMNS
            count = min(COLUMNS, f.width - start)
            given = floats_at(f.weights + 4 * start * f.taps, count, f.taps)
            for j in range(f.taps):
                for i in range(count):
                    weights[j, i] = given[i, j]
            for t in range(1 - f.taps, 0):
                _row(f, t, start, count, rows[(t + f.taps) % f.taps])
            for t in range(f.tokens):
                _row(f, t, start, count, rows[t % f.taps])
                for i in range(count):
                    total[i] = rows[(t + 1) % f.taps, i] * weights[0, i]
                for j in range(1, f.taps):
                    row = rows[(t + 1 + j) % f.taps]
                    for i in range(count):
                        total[i] += row[i] * weights[j, i]
                if silu:
                    for i in range(0, COLUMNS, LANES):
                        x = load(total, i, LANES)
                        store(total, i, x / divisor(x * np.float32(-1)))
                out = floats_at(f.out + 4 * (t * f.width + start), 1, count)[0]
                _times(total, f.gate + 4 * (t * f.pitch + start) if f.gate else 0, out)
            for j in range(1, f.taps):
                behind = floats_at(f.behind + 4 * ((j - 1) * f.width + start), 1, count)[0]
                _row(f, f.tokens - f.taps + j, start, count, behind)

    return jit(work)
