"""The kernel of norms: rows by the root of their mean square, times weights, of the sum of two rows too."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..lanes import convert, load, splat, store
from ..machine.intrinsics import from_bits, root
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from .call import Norm

F32, F64 = types.float32, types.float64
LANES = 16
arguments_of = reader(Norm)


@inner
def squares(row: Any, sixteen: Any) -> Any:
    """The sum of squares: sixteen sums of float64, one after the other, then those of the last columns."""
    whole = len(row) - len(row) % LANES
    sums = splat(0.0, F64, LANES)
    for i in range(0, whole, LANES):
        x = load(row, i, LANES)
        sums = sums + convert(x * x, F64)
    store(sixteen, 0, sums)
    total = 0.0
    for i in range(LANES):
        total += sixteen[i]
    for i in range(whole, len(row)):
        total += np.float64(row[i] * row[i])
    return total


@cache
def normed() -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Norm``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        width, epsilon = f.width, from_bits(f.epsilon)
        whole = width - width % LANES
        weights = floats_at(f.weights, 1, width)[0]
        sixteen = np.empty(LANES, np.float64)
        for r in range(first, stop):
            x = floats_at(f.x + 4 * (r // f.each * f.pitch + r % f.each * width), 1, width)[0]
            out = floats_at(f.out + 4 * r * width, 1, width)[0]
            if f.y:
                y = floats_at(f.y + 4 * r * width, 1, width)[0]
                total = floats_at(f.total + 4 * r * width, 1, width)[0]
                for i in range(0, whole, LANES):
                    store(total, i, load(y, i, LANES) + load(x, i, LANES))
                for i in range(whole, width):
                    total[i] = y[i] + x[i]
                x = total
            mean = np.float32(squares(x, sixteen) / width)
            factor = np.float32(1) / root(mean + epsilon)
            for i in range(0, whole, LANES):
                store(out, i, load(x, i, LANES) * factor * load(weights, i, LANES))
            for i in range(whole, width):
                out[i] = x[i] * factor * weights[i]

    return jit(work)
