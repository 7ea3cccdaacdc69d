"""Activations and weights of a case of ``ggmlq check``, by kind; the same for the same seed.

Each kind exposes one mistake: a sum that is left out, a scale that becomes zero or infinite as a
half, a result whose size hides the error in its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..formats import BlockFormat, Format
from ..ops import quantize
from ..testing.blocks import random_blocks
from ..testing.rows import rows

Rows = NDArray[np.float32]


def _scaled(low: int, high: int) -> Callable[[Generator, Rows], Rows]:
    """A function that multiplies each row by a power of two; exponents are spread evenly over low … high."""

    def scale(rng: Generator, x: Rows) -> Rows:
        powers = rng.permutation(np.linspace(low, high, len(x) + 2)[1:-1])
        scaled: Rows = (x * np.exp2(powers)[:, None]).astype(np.float32)
        return scaled

    return scale


def _some_zero(rng: Generator, x: Rows) -> Rows:
    """Set every other row to zero, and some runs of 32 in the other rows."""
    x[1::2] = 0
    for start in range(32, x.shape[1], 96):
        x[:, start : start + 32] = 0
    return x


def _outliers(rng: Generator, x: Rows) -> Rows:
    """Multiply one column in a hundred by a hundred: language models have such outliers."""
    x[:, rng.random(x.shape[1]) < 0.01] *= 100
    return x


def _same(rng: Generator, x: Rows) -> Rows:
    return x


# Kind of activations: rows to begin with, and what is done to them.
KINDS: dict[str, tuple[str, Callable[[Generator, Rows], Rows]]] = {
    "normal": ("normal", _same),
    "uniform": ("uniform", _same),
    "zero": ("normal", _some_zero),
    "constant": ("constant", _same),  # sums are large: offsets and minima must cancel
    "huge": ("normal", _scaled(8, 30)),  # block sums, then scales, overflow as halves
    "tiny": ("normal", _scaled(-30, -2)),  # scales become subnormal halves, then zero
    "outliers": ("normal", _outliers),
}


def activations(kind: str, m: int, k: int, seed: int) -> Rows:
    """Activations [m, k] of a kind."""
    first, then = KINDS[kind]
    return then(np.random.default_rng([seed, 1]), rows(first, m, k, seed))


def weights(fmt: Format, kind: str, n: int, k: int, seed: int) -> QuantArray:
    """Weights [n, k]: encoded floats, or random bytes with sane scales where NumPy cannot encode."""
    if isinstance(fmt, BlockFormat) and fmt.pack is None:
        blocks = random_blocks(fmt, n, k // fmt.block_size, seed + 1)
        return QuantArray.from_bytes(np.ascontiguousarray(blocks).view(np.uint8), fmt, (n, k))
    values = rows("heavy_tails" if kind == "outliers" else "normal", n, k, seed + 1)
    if kind == "zero":
        values[1::3] = 0
    return quantize(values, fmt)
