"""The kernel that adds up the results of a token's experts by their weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..lanes import load, store
from ..machine.jit import jit
from ..machine.memory import floats_at, reader
from .call import Mix

LANES = 16
arguments_of = reader(Mix)


@cache
def mixed() -> Any:
    """Compiled: parts ``first`` … ``stop`` of the rows of ``Mix``, each of so many columns."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        parts = (f.width + f.grain - 1) // f.grain
        for number in range(first, stop):
            token, start = number // parts, number % parts * f.grain
            end = min(start + f.grain, f.width)
            y = floats_at(f.y + 4 * token * f.used * f.width, f.used, f.width)
            weights = floats_at(f.weights + 4 * token * f.used, 1, f.used)[0]
            out = floats_at(f.out + 4 * token * f.width, 1, f.width)[0]
            whole = end - (end - start) % LANES
            for i in range(start, whole, LANES):
                sums = load(y[0], i, LANES) * weights[0]
                for u in range(1, f.used):
                    sums = sums + load(y[u], i, LANES) * weights[u]
                store(out, i, sums)
            for i in range(whole, end):
                total = y[0, i] * weights[0]
                for u in range(1, f.used):
                    total += y[u, i] * weights[u]
                out[i] = np.float32(total)

    return jit(work)
