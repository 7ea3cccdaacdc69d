"""The row of a code book that is nearest to a group of weights, for the IQ encoders."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.jit import inline
from ._neighbours import LANES
from ._rounding import bits


@inline
def codes_at(table: Any, place: Any) -> Any:
    """The levels of the row at a place in the lists, as bits."""
    return np.int32(table.codes[place // LANES, place % LANES])


@inline
def row_at(table: Any, place: Any) -> Any:
    """The number of the row at a place in the lists."""
    return table.row[place // LANES, place % LANES]


@cache
def level_of(levels: int, odd: bool) -> Any:
    """``level(codes, i, base)``: the number that level i of a row stands for in a fit.

    That is 1, 3, 5 … for the books of magnitudes (``odd``), else base, base + 1, base + 2.
    """
    width = int(levels - 1).bit_length()
    mask = 2**width - 1

    @inline
    def level(codes: Any, i: Any, base: Any) -> Any:
        number = codes >> width * i & mask
        if odd:
            return np.float32(np.int32(number * 2 + 1))
        return np.float32(np.int32(number)) + base

    return level


@cache
def finder(size: int, levels: int, odd: bool) -> Any:
    """``nearest_row(x, weight, at, scale, base, point, table)``, a place in the lists.

    Of a point's rows it takes the first with the least weighted distance from the group of
    weights at ``at``. Where no distance is finite, ggml ends the process; here it is any row.
    """
    level = level_of(levels, odd)

    @inline
    def nearest_row(x: Any, weight: Any, at: Any, scale: Any, base: Any, point: Any, table: Any) -> Any:
        least = np.uint64(0xFFFFFFFFFFFFFFFF)
        for chunk in range(table.first[point], table.first[point + 1]):
            for lane in range(LANES):
                codes = np.int32(table.codes[chunk, lane])
                distance = np.float32(0)
                for i in range(size):
                    off = scale * level(codes, i, base) - x[at + i]
                    distance += weight[at + i] * off * off
                # A sum of squares orders like its bits; of equals the first place is least.
                key = np.uint64(bits(distance)) << np.uint64(32) | np.uint64(chunk * LANES + lane)
                least = min(least, key)
        return np.int64(least & np.uint64(0xFFFFFFFF))

    return nearest_row
