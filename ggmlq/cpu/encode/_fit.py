"""The scale of a run of weights and the rows of a code book that go with it.

The candidates for the scale lie side by side, one lane each. Every sum stands in ggml's order, so
that the same candidate wins to the last bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import inline
from ._neighbours import LANES
from ._rounding import bits, nearest

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


class Run(NamedTuple):
    """A run of weights under one scale, as the search sees it, and where its rows go."""

    x: NDArray[np.float32]  # [run] magnitudes
    weight: NDArray[np.float32]  # [run] importance
    root: NDArray[np.float32]  # [run] its square root
    row: NDArray[np.int16]  # [groups]


class Candidates(NamedTuple):
    """Scratch: what each candidate for the scale leads to."""

    inverse: NDArray[np.float32]  # [lanes] one over the scale
    point: NDArray[np.int32]  # [groups, lanes] levels as rounded
    entry: NDArray[np.int32]  # [groups, lanes] the nearest row, as a place in the lists
    codes: NDArray[np.uint16]  # [groups, lanes] its levels
    xq: NDArray[np.float32]  # [lanes] weighted sum of x * q
    qq: NDArray[np.float32]  # [lanes] weighted sum of q * q


def candidates(groups: int, tries: int) -> Candidates:
    """Scratch for so many candidates; unused lanes hold zeros."""
    lanes = whole(tries)
    kinds = (np.float32, lanes), (np.int32, groups, lanes), (np.int32, groups, lanes)
    more = (np.uint16, groups, lanes), (np.float32, lanes), (np.float32, lanes)
    return Candidates(*(np.zeros(shape, kind) for kind, *shape in (*kinds, *more)))


def whole(tries: int) -> int:
    """Lanes for so many candidates."""
    return -(-tries // 8) * 8


@cache
def fitter(size: int, levels: int, run: int, tries: int, again: str) -> Any:
    """``fit(run, numerators, divisor, scale, table, candidates)``, which gives the scale.

    Groups of ``size`` weights have a row each. ``again`` says which groups are rounded once more
    with the best scale: those "off the book", "all if one is off" it, or "all".
    """
    groups, lanes = run // size, whole(tries)
    width = int(levels - 1).bit_length()
    mask = 2**width - 1
    everything, only_off = again == "all", again == "off the book"

    @inline
    def point_of(x, k, inverse):
        """The number of the levels that the weights of group k are rounded to."""
        point = np.int32(0)
        for i in range(size):
            level = nearest(HALF * (inverse * x[k * size + size - 1 - i] - ONE))
            point = np.int32(point * levels + max(np.int32(0), min(np.int32(levels - 1), level)))
        return point

    @inline
    def nearest_row(part, k, scale, point, table):
        """The first of a point's rows with the least weighted distance, as a place in the lists."""
        least = np.uint64(0xFFFFFFFFFFFFFFFF)
        for chunk in range(table.first[point], table.first[point + 1]):
            for lane in range(LANES):
                codes = np.int32(table.codes[chunk, lane])
                distance = ZERO
                for i in range(size):
                    q = np.float32(np.int32((codes >> width * i & mask) * 2 + 1))
                    off = scale * q - part.x[k * size + i]
                    distance += part.root[k * size + i] * off * off
                # A sum of squares orders like its bits; of equals the first place is least.
                key = np.uint64(bits(distance)) << np.uint64(32) | np.uint64(chunk * LANES + lane)
                least = min(least, key)
        return np.int64(least & np.uint64(0xFFFFFFFF))

    @inline
    def try_all(part, numerators, divisor, table, c):
        for lane in range(tries):
            c.inverse[lane] = numerators[lane] / divisor
        c.xq[:] = ZERO
        c.qq[:] = ZERO
        for k in range(groups):
            for lane in range(lanes):
                c.point[k, lane] = point_of(part.x, k, c.inverse[lane])
            for lane in range(tries):
                place = nearest_row(part, k, ONE / c.inverse[lane], c.point[k, lane], table)
                c.entry[k, lane] = place
                c.codes[k, lane] = table.codes[place // LANES, place % LANES]
            for lane in range(lanes):
                xq, qq, codes = c.xq[lane], c.qq[lane], np.int32(c.codes[k, lane])
                for i in range(size):
                    q = np.float32(np.int32((codes >> width * i & mask) * 2 + 1))
                    w = part.weight[k * size + i]
                    xq += w * part.x[k * size + i] * q
                    qq += w * q * q
                c.xq[lane], c.qq[lane] = xq, qq

    @inline
    def refine(part, scale, winner, table, c):
        """Round groups once more with the best scale, and fit it to all rows."""
        xq, qq, inverse = ZERO, ZERO, ONE / scale
        for k in range(groups):
            place = c.entry[k, winner] if winner >= 0 else -1
            if not only_off or (winner >= 0 and not table.exact[c.point[k, winner]]):
                place = nearest_row(part, k, scale, point_of(part.x, k, inverse), table)
            codes = np.int32(table.codes[place // LANES, place % LANES]) if place >= 0 else np.int32(0)
            part.row[k] = table.row[place // LANES, place % LANES] if place >= 0 else np.int16(0)
            for i in range(size):
                q = np.float32(np.int32((codes >> width * i & mask) * 2 + 1))
                w = part.weight[k * size + i]
                xq += w * part.x[k * size + i] * q
                qq += w * q * q
        return xq / qq if qq > ZERO else scale

    @inline
    def fit(part, numerators, divisor, scale, table, c):
        try_all(part, numerators, divisor, table, c)
        best, winner = ZERO, -1
        for lane in range(tries):
            xq, qq = c.xq[lane], c.qq[lane]
            if qq > ZERO and xq * xq > best * qq:
                scale = xq / qq
                best, winner = scale * xq, lane
        off = everything or (winner < 0 and not only_off)
        for k in range(groups):
            part.row[k] = table.row[c.entry[k, winner] // LANES, c.entry[k, winner] % LANES] if winner >= 0 else np.int16(0)
            off = off or (winner >= 0 and not table.exact[c.point[k, winner]])
        return refine(part, scale, winner, table, c) if off and scale > ZERO else scale

    return fit
