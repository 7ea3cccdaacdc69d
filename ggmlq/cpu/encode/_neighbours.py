"""Points that are not in a code book, and the rows of the book near them.

An IQ encoder rounds each weight of a group to a level by itself. Few of these points are rows of
the code book; for any other one, ggml tries the rows at the ``distances`` smallest distances from
it. The lists take a few tenths of a second to make and are kept.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats._grids import grid

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
