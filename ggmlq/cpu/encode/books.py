"""Common parts of the searches of IQ encoders: importance, rows of a code book near a point, rounding."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats._grids import grid
from ..machine.jit import inline

LANES = 8  # rows are tried so many at a time; lists are filled up with their last row


class Neighbours(NamedTuple):
    """The lists of all points, one after the other: what a kernel gets.

    A point with levels l[0], l[1] … has the number l[0] + l[1] * levels + l[2] * levels**2 …
    """

    first: NDArray[np.int32]  # [points + 1] where a point's list begins; lengths are whole LANES
    row: NDArray[np.int16]  # the row's number
    codes: NDArray[np.uint16]  # the row's levels, the first in the lowest bits
    exact: NDArray[np.bool_]  # [points] whether the point is a row itself, and its list only that


@cache
def neighbours(book: str, distances: int) -> Neighbours:
    """The lists of a code book; rows nearer come first, of equally near ones the lower number."""
    values = grid(book)
    entries, ranks = np.unique(values, return_inverse=True)
    levels, size = len(entries), values.shape[1]
    ranks = ranks.reshape(values.shape)
    powers = levels ** np.arange(size)
    points = np.arange(levels**size)[:, None] // powers % levels
    parts = [_near(part, ranks, distances) for part in np.array_split(points, len(points) // 256)]
    starts = np.cumsum([0, *(len(part) for part in np.array_split(points, len(points) // 256))])
    point = np.concatenate([part[0] + start for part, start in zip(parts, starts, strict=False)])
    row = np.concatenate([part[1] for part in parts])
    count = np.bincount(point, minlength=len(points))
    first = np.concatenate([[0], np.cumsum(-(-count // LANES) * LANES)])
    begin = np.cumsum(count) - count
    within = np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))
    row = row[np.repeat(begin, np.diff(first)) + np.minimum(within, np.repeat(count - 1, np.diff(first)))]
    width = int(levels - 1).bit_length()
    codes = (ranks << width * np.arange(size)).sum(axis=1)[row]
    exact = np.zeros(len(points), np.bool_)
    exact[ranks @ powers] = True
    return Neighbours(
        (first // LANES).astype(np.int32),
        row.astype(np.int16).reshape(-1, LANES),
        codes.astype(np.uint16).reshape(-1, LANES),
        exact,
    )


def _near(points: NDArray[Any], ranks: NDArray[Any], distances: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(point, row) pairs of a few points, in the order in which an encoder tries them."""
    p, r = points.astype(np.float32), ranks.astype(np.float32)  # exact: the sums are small integers
    distance = ((p * p).sum(axis=1)[:, None] + (r * r).sum(axis=1) - 2 * (p @ r.T)).astype(np.int32)
    limit = distance.min(axis=1, keepdims=True)
    alone = limit == 0
    for _ in range(distances - 1):
        farther = np.where(distance > limit, distance, distance.max() + 1).min(axis=1, keepdims=True)
        limit = np.where(alone, limit, farther)
    point, row = np.nonzero(distance <= limit)
    order = np.lexsort((row, distance[point, row], point))
    return point[order], row[order]


# --- The row of a code book that is nearest to a group of weights, for the IQ encoders ------------


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


# --- The importance of each weight in the searches of the IQ encoders, and the largest scale of a block ---

BLOCK = 256
INFINITY = np.float32(np.inf)


@inline
def sum_of_squares(x: Any, first: Any) -> Any:
    """The sum of squares of the block that begins at ``first``, added in order."""
    total = np.float32(0)
    for i in range(first, first + BLOCK):
        total += x[i] * x[i]
    return total


@inline
def largest_scale(scales: Any, squares: Any) -> Any:
    """The largest scale of a block; infinite where the sums have overflowed.

    Ggml ends the process there, or writes zeros; an infinite d tells the user.
    """
    most = np.float32(0) if squares + squares < INFINITY else INFINITY
    for scale in scales:
        most = max(most, scale) if scale == scale else INFINITY  # noqa: PLR0124 (NaN)
    return most


@cache
def weigher(run: int, times: int, plain: float) -> Any:
    """``weigh(x, imatrix, first, squares, weight)``: write the importance of a run of x from ``first`` on.

    With v = ``times`` · the mean square of the block, it is imatrix · sqrt(v + x**2), or ``plain`` · v + x**2
    without an imatrix.
    """
    factor, share = np.float32(times), np.float32(plain)

    @inline
    def weigh(x: Any, imatrix: Any, first: Any, squares: Any, weight: Any) -> None:
        variance = factor * squares / np.float32(BLOCK)
        for i in range(run):
            square = x[first + i] * x[first + i]
            if imatrix is not None:
                weight[i] = imatrix[first + i] * np.sqrt(variance + square)
            elif plain:
                weight[i] = share * variance + square
            else:
                weight[i] = square

    return weigh


# --- Ggml's rounding of floats to integers, for the compiled IQ encoders --------------------------

SHIFTER = np.float32(1.5 * 2**23)  # added to a float below 2**22, leaves its nearest integer in the mantissa


@inline
def nearest(v: np.float32) -> np.int32:
    """The nearest integer, ties to even; floats beyond 2**22 and NaN become the same integers as in ggml."""
    bits = np.float32(v + SHIFTER).view(np.int32)
    return np.int32((bits & np.int32(0x7FFFFF)) - np.int32(0x400000))


@inline
def bits(v: np.float32) -> np.uint32:
    """The bits of a float32; those of positive floats order like the floats."""
    return np.float32(v).view(np.uint32)
