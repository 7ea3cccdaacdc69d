"""Operands of ``bench/bench_engine.py`` on the card, and whether products of them are right.

Weights are copied until they are more than a cache holds. Their products with all activations are
computed once in float64, on the card too: from its decoder, which a few rows of the host's vouch for.
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
    """Rows of normal values, enough for the largest M."""

    def __init__(self, cupy: Any, most: int, k: int) -> None:
        self.cupy, self.x = cupy, cupy.random.standard_normal((most, k), dtype=np.float32)
        self.sizes = (self.x.astype(np.float64) ** 2).sum(axis=1)

    def halves(self, n: int) -> list[Any]:
        """Weights of cuBLAS, n rows; as many as have to rotate."""
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
        """Give back the memory that products in a CUDA graph took, when it is not replayed any more."""
        for q in self.copies:
            getattr(q, "recorded", []).clear()

    def judge(self, y: Any, m: int) -> float:
        """NMSE of products [..., m, N]; an error if they are wrong, or one of them is."""
        error = (y - self.want[:m]) ** 2
        worst = float((error / (self.activations.sizes[:m, None] * self.sizes)).max())
        nmse = float(error.mean() / (self.want[:m] ** 2).mean())
        if not (nmse <= NMSE and worst <= WORST):
            raise WrongError(f"wrong: NMSE {nmse:.2e} (bound {NMSE:.0e}), worst {worst:.2e} ({WORST:.0e})")
        return nmse


def random_bytes(fmt: Format, n: int, k: int, seed: int) -> Any:
    """Rows of blocks drawn from some thousands, none much larger than the others: all of them matter."""
    rng = np.random.default_rng(seed)
    pool = random_blocks(fmt, 1, 1 << 14, seed)[0]
    size = np.abs(fmt.decode(pool)).reshape(len(pool), -1).max(axis=1)
    middle = np.median(size)
    pool = pool[(size > middle / 8) & (size < middle * 8)]
    return pool[rng.integers(len(pool), size=(n, k // fmt.block_size))].view(np.uint8)
