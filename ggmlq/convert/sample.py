"""Sampled rows of a tensor, from which a recipe estimates the error of the whole tensor and its deviation.

The error of a quantized row is near a constant share of its energy, the sum of squares weighted by
importance. So rows are drawn with a probability in proportion to their energy, and an error is divided by
that probability: rows of outliers are in for certain, and only the share is estimated, which hardly varies.
All rows are read for their energy; a few are encoded, once for every type.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.threads import share
from ..gguf.source import release
from ..gguf.tensors import piece
from ..ops import dequantize
from .stream import check_finite, slabs

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]

ELEMENTS = 1 << 17  # of a tensor are measured, if it is not told otherwise
LEAST_ROWS = 16
FLOOR = 0.05  # of the mean energy is added to every row's: some error may lie where importance is 0


@dataclass(frozen=True)
class Sample:
    """Sampled rows of a tensor. ``chance``: the probability with which each row is drawn."""

    values: Floats  # [n, K]
    matrix: NDArray[np.int64]  # which matrix each is of
    chance: Wide
    energy: float  # of the whole tensor
    share: float  # of the rows that are here

    def total(self, errors: Wide) -> tuple[float, float]:
        """The estimate of the tensor's error from those of its sampled rows, and its standard deviation."""
        if (self.chance == 1).all():
            return float(errors.sum()), 0.0
        parts = errors / self.chance
        energies = float(parts.sum())
        n = len(parts)
        spread = (1 - self.chance) * (parts - energies / n) ** 2
        return energies, float(np.sqrt(n / (n - 1) * spread.sum()))


def draw(name: str, q: QuantArray, weights: Wide | None, elements: int) -> Sample:
    """A sample of a tensor's rows, the same in each call. ``weights``: importance [matrices, K]."""
    columns, rows = q.shape[-1], prod(q.shape[:-1])
    energies = _energies(name, q, weights)
    ids, chance = choose(name, energies, columns, elements)
    flat = piece(q, 0, (rows, columns))
    values = np.concatenate([dequantize(flat[int(i) : int(i) + 1]) for i in ids])
    release(q.blocks)
    matrix = ids // q.shape[-2] if len(q.shape) > 1 else ids * 0
    return Sample(values, matrix, chance, float(energies.sum()), len(ids) / rows)


def choose(name: str, energies: Wide, columns: int, elements: int) -> tuple[NDArray[np.int64], Wide]:
    """A sample of rows that stands for a tensor with these energies, and the probability of each row."""
    rows, count = len(energies), max(LEAST_ROWS, elements // columns)
    if rows <= 2 * count:
        return np.arange(rows), np.ones(rows)
    sizes = energies + FLOOR * energies.mean() if energies.any() else np.ones(rows)
    return _drawn(sizes, count, zlib.crc32(name.encode()))


def _drawn(sizes: Wide, count: int, seed: int) -> tuple[NDArray[np.int64], Wide]:
    """Row numbers drawn in proportion to sizes: at even steps along the sorted sizes, from a random start."""
    certain = np.zeros(len(sizes), bool)
    while True:  # what would be drawn more than once is in, and the others share what is left
        rest = sizes * ~certain
        chance = np.where(certain, 1.0, rest * (count - certain.sum()) / rest.sum())
        if not (chance > 1).any():
            break
        certain |= chance > 1
    order = np.argsort(sizes, kind="stable")
    ends = np.cumsum(chance[order])
    start = np.random.default_rng(seed).random()
    marks = np.floor(ends - start + 1e-9)
    ids = np.sort(order[np.diff(marks, prepend=np.floor(-start + 1e-9)) > 0])
    return ids, chance[ids]


def _energies(name: str, q: QuantArray, weights: Wide | None) -> Wide:
    """The energy of every row, a slab at a time."""
    columns, rows = q.shape[-1], prod(q.shape[:-1])
    energies = np.zeros(rows)
    for first, part in slabs(q, None if weights is None else len(weights)):
        values = dequantize(part)
        release(part.blocks)
        check_finite(name, q.shape, values, first)
        row = np.ones(columns) if weights is None else weights[_of(q, first) % len(weights)]

        def work(start: int, stop: int, values: Floats = values, row: Wide = row, first: int = first) -> None:
            wide = values[start:stop].astype(np.float64)
            energies[first + start : first + stop] = np.einsum("ij,ij,j->i", wide, wide, row)

        share(work, len(values))
    return energies


def _of(q: QuantArray, row: int) -> int:
    return row // q.shape[-2] if len(q.shape) > 1 else 0
