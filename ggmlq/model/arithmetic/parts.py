"""Attention in steps: scores, weights and results as arrays, by llama.cpp's names of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...base.devices import namespace

Array = Any  # an array of the arithmetic's type
Tell = Callable[[str, Array], None]


class Products(Protocol):
    """The two products of attention in an arithmetic, for one head."""

    dtype: Any

    def scores(self, q: Array, k: Any) -> Array: ...
    def mixed(self, weights: Array, v: Any) -> Array: ...


def attend(a: Products, q: Array, cache: Any, seen: Any, tell: Tell) -> Array:
    """Attention of queries [H, T, D], [H, T, DV]; ``tell`` gets kq, kq_soft_max and kqv."""
    heads, (k, v) = len(q), cache.of_heads()
    kv_heads = len(k)
    of = [h * kv_heads // heads for h in range(heads)]
    xp = namespace(q)
    scores = xp.stack([a.scores(q[h], k[of[h]]) for h in range(heads)]).astype(a.dtype, copy=False)
    tell("kq", scores)
    if seen.cap:
        cap = a.dtype(seen.cap)
        scores = scores * (1 / cap)
        tell("kq_scaled_1", scores)
        scores = np.tanh(scores)
        tell("kq_tanh", scores)
        scores = scores * cap
        tell("kq_scaled_2", scores)
    weights = weighed(scores * a.dtype(seen.scale), seen)
    tell("kq_soft_max", weights)
    result = xp.stack([a.mixed(weights[h], v[of[h]]) for h in range(heads)])
    result = result.astype(a.dtype, copy=False)
    tell("kqv", result)
    return result


def visible(
    queries: int, positions: int, window: int, xp: Any = np, start: int = 0, stop: int | None = None
) -> NDArray[np.bool_]:
    """The positions [T, S] that each query sees, the last query at the last position.

    ``start`` and ``stop``: of these positions alone.
    """
    at = xp.arange(start, positions if stop is None else stop)
    place = xp.arange(queries)[:, None] + positions - queries
    mask: NDArray[np.bool_] = at <= place
    return mask & (at > place - window) if window else mask


def weighed(scores: Array, seen: Any) -> Array:
    """Scores [H, T, S] as weights: the softmax over the positions that are seen, and the sinks."""
    xp = namespace(scores)
    mask = visible(scores.shape[1], scores.shape[2], seen.window, xp)
    scores = xp.where(mask, scores, scores.dtype.type(-np.inf))
    top = scores.max(axis=-1, keepdims=True)
    if seen.sinks is not None:
        sinks = xp.asarray(seen.sinks, scores.dtype)[:, None, None]
        top = np.maximum(top, sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    if seen.sinks is not None:
        total = total + np.exp(sinks - top)
    return (weights / total).astype(scores.dtype)
