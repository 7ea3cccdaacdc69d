"""``GgmlCpu``: as llama.cpp multiplies on x86, each product's activations in the blocks of its weights' type.

All that it rounds by design is rounded here too: activations to 8-bit codes, queries to the type of the keys,
weights of the softmax to halves, GELU to its table of halves, angles in float32 one from the other. Sums of
float32 are in float64 here, so results differ by the order of its sums.
"""

from __future__ import annotations

import numpy as np

from ... import reference
from ...arrays.array import QuantArray
from . import flash, parts
from .kernels import Array, Kernels, Keys, Seen

ARITHMETIC = "ggml-cpu"
TABLE = 10.0  # from here on GELU is taken as x or 0


class GgmlCpu(Kernels):
    """llama.cpp's CPU backend with one thread, weights in their plain layout."""

    steps = True

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``, the product rounded to float32 before the bias is added."""
        y = reference.linear(x, q, ARITHMETIC).astype(np.float32)
        return y if bias is None else y + bias

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """The products of experts."""
        return reference.expert_linear(x, q, ids, ARITHMETIC).astype(np.float32)

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """llama.cpp's attention in one node."""
        return flash.attend(q, cache, seen)

    def attend_in_steps(self, q: Array, cache: Keys, seen: Seen, tell: parts.Tell) -> Array:
        """Attention as llama.cpp computes it without flash attention."""
        return parts.attend(self, q, cache, seen, tell)

    def scores(self, q: Array, k: QuantArray) -> Array:
        """A product whose weights are the keys."""
        return reference.linear(q, k, ARITHMETIC)

    def mixed(self, weights: Array, v: QuantArray) -> Array:
        """A product whose weights are the values, columns as rows."""
        rounded = weights.astype(np.float16) if v.format.name == "f16" else weights
        return rounded.astype(np.float64) @ v.dequantize(np.float64)

    def gelu(self, x: Array) -> Array:
        """GELU from a table of halves."""
        halves = x.astype(np.float16).astype(np.float32)
        inside = super().gelu(halves).astype(np.float16).astype(np.float32)
        return np.where(x <= -TABLE, np.float32(0), np.where(x >= TABLE, x, inside))
