"""The operands of ``bench/bench_engine.py`` on the GPU, and the check of their products.

There are as many copies of the weights as exceed the cache. The right products with all activations are
computed once in float64, on the GPU too, from values of its decoder; a few rows are compared with the host's
decoder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..formats import Format
from .blocks import random_blocks

ROTATED = 160e6  # bytes of all copies, at least
NMSE, WORST = 2e-4, 1e-2  # of all products, of each one: beside the product of the lengths of its rows


class WrongError(Exception):
    """A product that is not what it should be."""


class Activations:
    """Activations of normal values on the GPU, as many rows as the largest M."""

    def __init__(self, cupy: Any, most: int, k: int) -> None:
        self.cupy, self.x = cupy, cupy.random.standard_normal((most, k), dtype=np.float32)
        self.sizes = (self.x.astype(np.float64) ** 2).sum(axis=1)

    def halves(self, n: int) -> list[Any]:
        """Weights of n rows in halves for cuBLAS, in as many copies as exceed the cache."""
        shape = (n, self.x.shape[1])
        random = self.cupy.random.standard_normal
        copies = 1 + int(ROTATED / (2 * n * shape[1]))
        return [(random(shape, dtype=np.float32) / 64).astype(np.float16) for _ in range(copies)]


class Weights:
    """Copies of one matrix on the card, and its products with all activations in float64."""

    def __init__(self, fmt: Format, n: int, activations: Activations, seed: int) -> None:
        k = activations.x.shape[1]
        here = QuantArray.from_bytes(random_bytes(fmt, n, k, seed), fmt, (n, k))
        first = here.to("cuda")
        self.copies: list[QuantArray] = [first, *(first.copy() for _ in range(int(ROTATED / first.nbytes)))]
        values = first.dequantize()
        if not np.array_equal(to_host(values[:4]), fmt.decode(here.blocks[:4])):
            raise RuntimeError(f"{fmt.name}: the card decodes otherwise than the host; the oracle is no good")
        values = values.astype(np.float64)
        self.want = activations.x.astype(np.float64) @ values.T
        self.sizes = (values**2).sum(axis=1) / k
        self.activations = activations

    def forget(self) -> None:
        """Free the recorded launches of products in a CUDA graph that is not replayed any more."""
        for q in self.copies:
            getattr(q, "recorded", []).clear()

    def judge(self, y: Any, m: int) -> float:
        """The NMSE of products y [..., m, N]; WrongError if it, or the error of one element, is too large."""
        error = (y - self.want[:m]) ** 2
        worst = float((error / (self.activations.sizes[:m, None] * self.sizes)).max())
        nmse = float(error.mean() / (self.want[:m] ** 2).mean())
        if not (nmse <= NMSE and worst <= WORST):
            raise WrongError(f"wrong: NMSE {nmse:.2e} (bound {NMSE:.0e}), worst {worst:.2e} ({WORST:.0e})")
        return nmse


def random_bytes(fmt: Format, n: int, k: int, seed: int) -> Any:
    """The bytes of random weights: blocks drawn from some thousands of similar size; each one matters."""
    rng = np.random.default_rng(seed)
    pool = random_blocks(fmt, 1, 1 << 14, seed)[0]
    size = np.abs(fmt.decode(pool)).reshape(len(pool), -1).max(axis=1)
    middle = np.median(size)
    pool = pool[(size > middle / 8) & (size < middle * 8)]
    return pool[rng.integers(len(pool), size=(n, k // fmt.block_size))].view(np.uint8)
