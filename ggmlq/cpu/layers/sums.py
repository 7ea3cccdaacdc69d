"""The kernels of sums of rows, of a factor for all numbers, and of logits that are bent below a cap."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..attention.softmax import tangent
from ..lanes import load, store
from ..machine.intrinsics import from_bits
from ..machine.jit import jit
from ..machine.memory import floats_at, reader, words_at
from .call import Number, Sum

LANES = 16
sums, numbers = reader(Sum), reader(Number)


@cache
def added() -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Sum``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = sums(arguments)
        for r in range(first, stop):
            x = floats_at(f.x + 4 * r * f.width, 1, f.width)[0]
            row = words_at(f.ids, stop)[r] if f.ids else r
            y = floats_at(f.y + 4 * row * f.pitch, 1, f.width)[0]
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            for i in range(f.width):
                out[i] = x[i] + y[i]

    return jit(work)


@cache
def times() -> Any:
    """Compiled: numbers ``first`` … ``stop`` of ``Number`` times it."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = numbers(arguments)
        x, out, factor = floats_at(f.x, 1, stop)[0], floats_at(f.out, 1, stop)[0], from_bits(f.number)
        for i in range(first, stop):
            out[i] = x[i] * factor

    return jit(work)


@cache
def capped() -> Any:
    """Compiled: numbers ``first`` … ``stop`` of ``Number``, below it and above its negative."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = numbers(arguments)
        x, out, cap = floats_at(f.x, 1, stop)[0], floats_at(f.out, 1, stop)[0], from_bits(f.number)
        less, last = np.float32(1) / cap, np.zeros(LANES, np.float32)
        whole = first + (stop - first) // LANES * LANES
        for i in range(first, whole, LANES):
            store(out, i, tangent(load(x, i, LANES) * less) * cap)
        for i in range(whole, stop):
            last[i - whole] = x[i]
        store(last, 0, tangent(load(last, 0, LANES) * less) * cap)
        for i in range(whole, stop):
            out[i] = last[i - whole]

    return jit(work)
