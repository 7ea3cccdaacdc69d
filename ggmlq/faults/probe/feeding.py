"""The probe's products: unit vectors through a kernel, so that y is the weights that it uses.

One-hot activations have exact codes in every arithmetic. Their value is 127, so that the scale of 8-bit
codes is 1, and block sums are exact as halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ..numbers import Index, Mask, Wide

Multiply = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], Mask]]
# activations [M, K] to y [M, N], and a mask of the elements of y that were never written

VALUE = 127.0
MOST = 1024  # unit vectors
CALLS = 512  # products, where they have few rows
WORK = 1 << 35  # multiplications


class Effective(NamedTuple):
    """Weights [N, places] as the kernel uses them."""

    weights: Wide
    unwritten: Mask
    places: Index  # of K


def effective(multiply: Multiply, q: QuantArray, rows: int) -> Effective:
    """The weights that a kernel uses, read by ``rows`` unit vectors a call: kernels differ by that."""
    n, k = q.shape
    places = _places(q, rows)
    weights, unwritten = np.empty((n, len(places))), np.zeros((n, len(places)), np.bool_)
    for start in range(0, len(places), rows):
        part = places[start : start + rows]
        x = np.zeros((rows, k), np.float32)
        x[np.arange(len(part)), part] = VALUE
        y, lost = multiply(x)
        at = slice(start, start + len(part))
        weights[:, at] = y[: len(part)].T.astype(np.float64) / VALUE
        unwritten[:, at] = lost[: len(part)].T
    return Effective(weights, unwritten, places)


def _places(q: QuantArray, rows: int) -> Index:
    """All of K, or whole blocks from both ends."""
    n, k = q.shape
    block = max(q.format.block_size, 32)
    most = min(MOST, CALLS * rows, max(WORK // (n * k), 1))
    if k <= most:
        return np.arange(k)
    blocks = max(most // block, 2)
    front = min((blocks + 1) // 2 * block, k)
    return np.union1d(np.arange(front), np.arange(max(k - blocks // 2 * block, 0), k))


class Pair(NamedTuple):
    """Two blocks of K, each with one activation that is not zero, and the outputs that are wrong then."""

    first: int
    second: int
    wrong: Mask  # [N]


def pairs(
    multiply: Multiply, q: QuantArray, rows: int, weights: Wide, limit: Wide, block: int
) -> Iterator[Pair]:
    """Pairs of blocks fed together: the first 8 pairs of neighbours, and the first block with the last."""
    k = q.shape[1]
    blocks = k // block
    wanted = [(b, b + 1) for b in range(min(blocks - 1, 8))] + [(0, blocks - 1)] * (blocks > 2)
    places = [(a * block + inside, b * block + inside) for a, b in wanted for inside in _inside(block)]
    for start in range(0, len(places), rows):
        part = np.array(places[start : start + rows])
        x = np.zeros((rows, k), np.float32)
        x[np.arange(len(part))[:, None], part] = VALUE
        y, lost = multiply(x)
        for (i, j), one, gone in zip(part, y[: len(part)] / VALUE, lost[: len(part)], strict=True):
            off = np.abs(one - (weights[:, i] + weights[:, j])) > limit[:, i] + limit[:, j]
            yield Pair(int(i) // block, int(j) // block, off | gone)


def _inside(block: int) -> list[int]:
    """Elements of a block: one in each run of 32."""
    return list(range(5 % block, block, 32))
