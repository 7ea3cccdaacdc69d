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

from ..base.devices import cuda_device, cuda_module, device_of, is_host

MOST = 512  # columns that are rotated together: beyond it nothing is gained


class Rotation:
    """An orthogonal matrix of ``width`` columns: blocks of Hadamard matrices, each column with a sign.

    ``part``: columns that a rotation of the first of them must not leave, as those of values that are the
    first columns of the keys. Rows lie on the host or on a GPU; results are float32, the same on both.
    """

    def __init__(self, width: int, seed: int, part: int = 0) -> None:
        common = math.gcd(width, part or width)
        self.block = min(MOST, common & -common)  # its largest power of two
        self._signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), width)
        self._there: dict[str, Any] = {}  # signs on GPUs

    def forward(self, x: Any) -> Any:
        """Rows [..., width], or the first columns of such, rotated."""
        if not is_host(x):
            return self._spread(x, False)
        columns = np.asarray(x, np.float32)
        columns = columns * self._signs[: columns.shape[-1]]
        return self._transformed(columns)

    def back(self, y: Any) -> Any:
        """Rows [..., width], or the first columns, rotated back."""
        if not is_host(y):
            return self._spread(y, True)
        return self._transformed(y) * self._signs[: y.shape[-1]]

    def signs_on(self, device: str) -> Any:
        """The signs on a GPU, copied there once."""
        if device not in self._there:
            self._there[device] = cuda_device().upload(self._signs, device)
        return self._there[device]

    def _spread(self, x: Any, back: bool) -> Any:
        signs = self.signs_on(device_of(x))
        return cuda_module("activations.layers").spread(x, self.block, signs, back) if x.size else x

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
        with np.errstate(invalid="ignore", over="ignore"):  # encoders refuse what is not finite
            x = np.stack((a + b, a - b), axis=-2).reshape(x.shape)
        half *= 2
    return x * np.float32(1 / math.sqrt(n))
