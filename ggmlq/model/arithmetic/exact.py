"""``Exact``: the oracle of a whole model, float64 on decoded weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import reference
from ...arrays.array import QuantArray
from .kernels import Array, Kernels, Keys, Seen


class Exact(Kernels):
    """Everything in float64. Keys and values are rounded to the types of the cache, nothing else is."""

    dtype: Any = np.float64

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias`` in float64."""
        y = reference.linear(x, q)
        return y if bias is None else y + bias

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """The products of experts in float64."""
        return reference.expert_linear(x, q, ids)

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention by the oracle, in float64."""
        return reference.attention(
            q[None], cache.k, cache.v, causal=True, scale=seen.scale, window=seen.window or None,
            softcap=seen.cap, sinks=seen.sinks,
        )[0]  # fmt: skip
