"""Limits of a node of a whole run: how far roundings may take it from the model in float64.

A run that is right is one more rounding of the same numbers. How far roundings take a node is seen from a
second one: the model in llama.cpp's arithmetic (``"ggml-cpu"``) against the model in float64. Row by row,
both as the root of the mean square and by the largest element, a run may be ``MARGIN`` times as far from
float64 as that one is. Two roundings to as many bits are as far from the truth on average, whatever the order
of the weights, the layout or the device; the margin is for one that rounds to a bit less, and for luck.

The second rounding is one draw. So a row's own distance counts, the mean over the node's rows, and where a
node has few rows, what it had in earlier steps; where it has few numbers, what the node before it had. Sums
in float32 are not rounded in ``"ggml-cpu"``; each may add a rounding of float32 for each of its terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN = 8.0
SMALLEST = 1e-30
UNIT = 2.0**-24  # a rounding of float32
FEW_ROWS, FEW_NUMBERS = 64, 64  # their mean is a matter of luck


@dataclass(frozen=True)
class Finding:
    """The worst row of a node: squared distances relative to the row, and the place of the worst element.

    ``share``: the distance divided by its limit, more than 1 where no rounding explains it.
    """

    share: float
    distance: float
    limit: float
    where: tuple[int, ...] = ()
    value: float = 0.0
    exact: float = 0.0


@dataclass(frozen=True)
class Rounding:
    """Squared distances of a second rounding from float64, the mean of a node's rows: of all, and largest."""

    mean: float = 0.0
    top: float = 0.0

    def or_more(self, other: Rounding) -> Rounding:
        """The larger one of two."""
        return Rounding(max(self.mean, other.mean), max(self.top, other.top))


class Rows:
    """The rows of a node in float64, with the distance of its second rounding from them."""

    def __init__(self, exact: NDArray[Any], rounded: NDArray[Any]) -> None:
        self.shape = exact.shape
        self.values = _rows(exact)
        # Scores of groups that are left out are minus infinity, and equal or not.
        self.exact = np.where(np.isinf(self.values), 0.0, self.values)
        squares = self.exact**2
        size, mean = squares.sum(axis=1), max(float(squares.sum(axis=1).mean()), SMALLEST)
        short = self.exact.shape[1] < FEW_NUMBERS  # its size may be small by luck, as scores are
        self.size = np.maximum(size, mean if short else SMALLEST * mean)
        self.all, self.top = self.distances(rounded)
        self.rounding = Rounding(float(self.all.mean()), float(self.top.mean()))

    @property
    def few_rows(self) -> bool:
        """True where the mean of the rows may be small by luck."""
        return len(self.exact) < FEW_ROWS

    @property
    def few_numbers(self) -> bool:
        """True where all distances may be small by luck."""
        return self.exact.size < FEW_NUMBERS

    def distances(self, other: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squared distances of rows from these, and of each row's furthest element, by the row's size."""
        values = _rows(other)
        off = np.where(np.isinf(values) & (values == self.values), 0.0, values - self.exact) ** 2
        return off.sum(axis=1) / self.size, off.max(axis=1) / self.size

    def limits(self, least: Rounding, sums: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The limits of both distances; ``sums``: squared distance that sums of float32 may add to a row."""
        wide = self.exact.shape[1]
        means = self.rounding.or_more(least)
        whole = np.maximum(self.all, means.mean) + sums
        top = np.maximum(self.top, means.top) + sums * min(1.0, 32 / wide)
        return MARGIN**2 * whole, MARGIN**2 * top

    def judged(self, run: NDArray[Any], least: Rounding, sums: float) -> Finding:
        """The worst row of a run's node."""
        (whole, top), limits = self.distances(run), self.limits(least, sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.stack([whole / limits[0], top / limits[1]])
        shares = np.where(np.isnan(shares), np.inf, shares)
        kind, row = np.unravel_index(int(shares.argmax()), shares.shape)
        values = _rows(run)
        off = np.abs(values[row] - self.exact[row])
        column = int(np.where(np.isnan(off), np.inf, off).argmax())
        place = np.unravel_index(int(row) * self.exact.shape[1] + column, self.shape)
        return Finding(
            float(shares[kind, row]), float((whole, top)[kind][row]), float(limits[kind][row]),
            tuple(int(i) for i in place), float(values[row, column]), float(self.exact[row, column]),
        )  # fmt: skip


def _rows(x: NDArray[Any]) -> NDArray[np.float64]:
    """Rows along the last axis that is longer than 1."""
    shape = list(x.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return np.asarray(x, np.float64).reshape(-1, shape[-1])


def choice(order: NDArray[Any], scores: Rows, limits: NDArray[np.float64]) -> Finding:
    """The worst token of a choice of experts: [T, ranks] numbers, against scores [T, experts] in float64.

    Whoever has another order than float64 has to have scores that changed places. If each row of them is
    within its limit, two numbers of it are at most the root of 2 times as far from where they were to each
    other: experts may change places only if their scores are nearer than that.
    """
    numbers = np.asarray(order).reshape(len(scores.values), -1)
    margin = np.sqrt(2 * limits * scores.size)
    gaps = np.array([_gap(row, one) for row, one in zip(numbers, scores.values, strict=True)])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(gaps > 0, gaps / margin, 0.0)
    row = int(shares.argmax())
    return Finding(float(shares[row]), float(gaps[row]), float(margin[row]), (row,))


def _gap(order: NDArray[Any], scores: NDArray[np.float64]) -> float:
    """The most by which an expert of an order has a smaller score than one behind it or left out."""
    if len(set(order.tolist())) < len(order) or order.min() < 0 or order.max() >= len(scores):
        return float("inf")
    chosen = scores[order]
    rest = np.delete(scores, order).max(initial=-np.inf)
    behind = np.maximum.accumulate(np.append(chosen, rest)[::-1])[::-1][1:]
    apart = behind > chosen  # minus infinity is as far from itself as any number
    return float((behind[apart] - chosen[apart]).max(initial=0.0))
