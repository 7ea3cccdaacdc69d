"""Arithmetics that are oracles of a whole model.

``Exact``: float64 on decoded weights.
``GgmlCpu``: as llama.cpp multiplies on x86, each product's activations in the blocks of its weights' type.

All that it rounds by design is rounded here too: activations to 8-bit codes, queries to the type of the keys,
weights of the softmax to halves, GELU to its table of halves, angles in float32 one from the other. Sums of
float32 are in float64 here, so results differ by the order of its sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import reference
from ...arrays.array import QuantArray
from . import kernels
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


# --- llama.cpp's attention in one node, on its CPU backend -----------------------------------
# Up to 63 queries, and for keys and values in blocks, it goes over the positions one by one: queries are
# rounded to the type that the keys are multiplied with, and where values are halves the running sum is one
# too. From 64 queries on, if keys and values are both f16 or both f32, it multiplies tiles in float32.

TILE = 64  # queries from which on tiles are multiplied


def attend(q: Array, cache: Keys, seen: Seen) -> Array:
    """Attention of queries [H, T, D] over a cache, [H, T, DV]."""
    kinds = cache.k.format.name, cache.v.format.name
    tiles = q.shape[1] >= TILE and kinds[0] == kinds[1] and kinds[0] in ("f16", "f32")
    scores = _scores(q, cache, None if tiles else "ggml-cpu")
    if seen.cap:
        scores = scores * np.float32(np.float32(seen.scale) / np.float32(seen.cap))
        scores = np.float32(seen.cap) * np.tanh(scores)
    else:
        scores = scores * np.float32(seen.scale)
    if kinds[1] == "f16" and not tiles:
        return _in_halves(scores, cache, seen)
    weights = kernels.weighed(scores.astype(np.float64), seen)
    values, group = cache.of_heads()[1].dequantize(np.float64), len(q) // cache.v.shape[1]
    return np.stack([w @ values[h // group] for h, w in enumerate(weights)]).astype(np.float32)


def _scores(q: Array, cache: Keys, arithmetic: str | None) -> NDArray[np.float32]:
    """Queries times keys, [H, T, S]; without an arithmetic queries stay as they are."""
    keys, group = cache.of_heads()[0], len(q) // cache.k.shape[1]
    scores = [reference.linear(row, keys[h // group], arithmetic or "exact") for h, row in enumerate(q)]
    return np.stack(scores).astype(np.float32)


def _in_halves(scores: NDArray[np.float32], cache: Keys, seen: Seen) -> NDArray[np.float32]:
    """The sum over positions, which is rounded to a half after each; all queries go side by side."""
    heads, queries, positions = scores.shape
    values = np.repeat(cache.of_heads()[1].dequantize(), heads // cache.v.shape[1], axis=0)  # [H, S, DV]
    mask = kernels.visible(queries, positions, seen.window)
    total = np.zeros((heads, queries, 1), np.float32)
    top = np.full((heads, queries, 1), -np.inf, np.float32)
    result = np.zeros((heads, queries, values.shape[-1]), np.float32)
    for at in range(positions):
        rows = np.flatnonzero(mask[:, at])
        if not len(rows):
            continue
        some = slice(int(rows[0]), int(rows[-1]) + 1)  # queries that see a position lie in one run
        score, old = scores[:, some, at, None], top[:, some]
        new = np.maximum(old, score)
        shrink, weight = _exp(old - new), _exp(score - new)
        shrunk = np.where(score > old, _half(result[:, some] * shrink), result[:, some])
        # A fused product and sum: in float64 the product is exact.
        value = values[:, at, None, :].astype(np.float64) * weight + shrunk
        result[:, some] = _half(value.astype(np.float32))
        total[:, some] = total[:, some] * shrink + weight
        top[:, some] = new
    if seen.sinks is not None:
        sinks = np.asarray(seen.sinks, np.float32)[:, None, None]
        new = np.maximum(top, sinks)
        shrink = _exp(top - new)
        result, total = result * shrink, total * shrink + _exp(sinks - new)
    return result * (np.float32(1) / total)


def _exp(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp, rounded once, as the C library's is."""
    return np.exp(x.astype(np.float64)).astype(np.float32)


def _half(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x.astype(np.float16).astype(np.float32)


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
        return attend(q, cache, seen)

    def attend_in_steps(self, q: Array, cache: Keys, seen: Seen, tell: kernels.Tell) -> Array:
        """Attention as llama.cpp computes it without flash attention."""
        return kernels.attend(self, q, cache, seen, tell)

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
