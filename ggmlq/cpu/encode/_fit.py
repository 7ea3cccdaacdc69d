"""The fit of a run in the IQ2 and IQ3 encoders: its scale and the rows of the code book that go with it.

The candidates for the scale lie side by side, one lane each. Every sum stands in ggml's order, so
that the same candidate wins to the last bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..machine.jit import inline
from ._nearest import codes_at, finder, level_of, row_at
from ._rounding import nearest

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


class Candidates(NamedTuple):
    """Scratch memory: the levels, rows and sums of each candidate for the scale."""

    inverse: NDArray[np.float32]  # [lanes] one over the scale
    point: NDArray[np.int32]  # [groups, lanes] levels as rounded
    place: NDArray[np.int32]  # [groups, lanes] of the nearest row
    codes: NDArray[np.uint16]  # [groups, lanes] its levels
    xq: NDArray[np.float32]  # [lanes] weighted sum of x * q
    qq: NDArray[np.float32]  # [lanes] weighted sum of q * q


def candidates(groups: int, tries: int) -> Candidates:
    """Scratch memory for ``tries`` candidates; unused lanes hold zeros."""
    lanes = whole(tries)
    return Candidates(
        np.zeros(lanes, np.float32),
        np.zeros((groups, lanes), np.int32),
        np.zeros((groups, lanes), np.int32),
        np.zeros((groups, lanes), np.uint16),
        np.zeros(lanes, np.float32),
        np.zeros(lanes, np.float32),
    )


def whole(tries: int) -> int:
    """The number of lanes for ``tries`` candidates, a multiple of eight."""
    return -(-tries // 8) * 8


@cache
def fitter(size: int, levels: int, run: int, tries: int, again: str) -> Any:
    """``fit(x, weight, root, row, numerators, divisor, scale, table, candidates)``: the scale.

    Each group of ``size`` weights gets a row. ``again`` says which groups are rounded once more
    with the best scale: those "off the book", "all if one is off" it, or "all".
    """
    groups, lanes = run // size, whole(tries)
    everything, only_off = again == "all", again == "off the book"
    nearest_row, level = finder(size, levels, True), level_of(levels, True)

    @inline
    def point_of(x: Any, k: Any, inverse: Any) -> Any:
        """The number of the levels that the weights of group k are rounded to."""
        point = np.int32(0)
        for i in range(size):
            rounded = nearest(HALF * (inverse * x[k * size + size - 1 - i] - ONE))
            point = np.int32(point * levels + max(np.int32(0), min(np.int32(levels - 1), rounded)))
        return point

    @inline
    def add(x: Any, weight: Any, k: Any, codes: Any, xq: Any, qq: Any) -> Any:
        """The sums of a fit, with group k added."""
        for i in range(k * size, k * size + size):
            q = level(codes, i - k * size, ZERO)
            xq += weight[i] * x[i] * q
            qq += weight[i] * q * q
        return xq, qq

    @inline
    def try_all(x: Any, weight: Any, root: Any, numerators: Any, divisor: Any, table: Any, c: Any) -> None:
        for lane in range(tries):
            c.inverse[lane] = numerators[lane] / divisor
        c.xq[:] = ZERO
        c.qq[:] = ZERO
        for k in range(groups):
            for lane in range(lanes):
                c.point[k, lane] = point_of(x, k, c.inverse[lane])
            for lane in range(tries):
                scale = ONE / c.inverse[lane]
                place = nearest_row(x, root, k * size, scale, ZERO, c.point[k, lane], table)
                c.place[k, lane] = place
                c.codes[k, lane] = codes_at(table, place)
            for lane in range(lanes):
                codes = np.int32(c.codes[k, lane])
                c.xq[lane], c.qq[lane] = add(x, weight, k, codes, c.xq[lane], c.qq[lane])

    @inline
    def refine(x: Any, weight: Any, root: Any, row: Any, scale: Any, winner: Any, table: Any, c: Any) -> Any:
        """Round groups once more with the best scale, and fit it to all rows."""
        xq, qq, inverse = ZERO, ZERO, ONE / scale
        for k in range(groups):
            if only_off and table.exact[c.point[k, winner]]:
                place = np.int64(c.place[k, winner])
            else:
                place = nearest_row(x, root, k * size, scale, ZERO, point_of(x, k, inverse), table)
            row[k] = row_at(table, place)
            codes = codes_at(table, place)
            xq, qq = add(x, weight, k, codes, xq, qq)
        return xq / qq if qq > ZERO else scale

    @inline
    def fit(
        x: Any,
        weight: Any,
        root: Any,
        row: Any,
        numerators: Any,
        divisor: Any,
        scale: Any,
        table: Any,
        c: Any,
    ) -> Any:
        try_all(x, weight, root, numerators, divisor, table, c)
        best, winner = ZERO, -1
        for lane in range(tries):
            xq, qq = c.xq[lane], c.qq[lane]
            if qq > ZERO and xq * xq > best * qq:
                scale = xq / qq
                best, winner = scale * xq, lane
        off = everything or (winner < 0 and not only_off)
        for k in range(groups):
            row[k] = row_at(table, c.place[k, winner]) if winner >= 0 else np.int16(0)
            off = off or (winner >= 0 and not table.exact[c.point[k, winner]])
        return refine(x, weight, root, row, scale, winner, table, c) if off and scale > ZERO else scale

    return fit
