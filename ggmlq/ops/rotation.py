"""Rotation of keys and values before they are quantized: a Hadamard transform of columns with random signs.

A column that is much larger than the others costs all values of its blocks their precision. A rotation
spreads it over all columns, and scores stay what they were: (R q)·(R k) = q·k. Values are rotated too, and
the result, a sum of values, is rotated back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 512  # columns that are rotated together: beyond it nothing is gained


class Rotation:
    """An orthogonal matrix of ``width`` columns: blocks of Hadamard matrices, each column with a sign.

    ``part``: columns that a rotation of the first of them must not leave, as those of values that are the
    first columns of the keys.
    """

    def __init__(self, width: int, seed: int, part: int = 0) -> None:
        common = math.gcd(width, part or width)
        self.block = min(MOST, common & -common)  # its largest power of two
        self._signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), width)

    def forward(self, x: Any) -> NDArray[np.float32]:
        """Rows [..., width], or the first columns of such, rotated."""
        columns = np.asarray(x, np.float32)
        columns = columns * self._signs[: columns.shape[-1]]
        return self._transformed(columns)

    def back(self, y: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows [..., width], or the first columns, rotated back."""
        rows: NDArray[np.float32] = self._transformed(y) * self._signs[: y.shape[-1]]
        return rows

    def _transformed(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return hadamard(x.reshape(-1, self.block)).reshape(x.shape)


def hadamard(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of a power of two times the orthogonal Hadamard matrix, which is its own inverse.

    Sums and differences of halves, step by step: a row's bits do not depend on the rows beside it, as those
    of a product by a BLAS may.
    """
    n, half = x.shape[-1], 1
    while half < n:
        pairs = x.reshape(*x.shape[:-1], n // (2 * half), 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack((a + b, a - b), axis=-2).reshape(x.shape)
        half *= 2
    return x * np.float32(1 / math.sqrt(n))
