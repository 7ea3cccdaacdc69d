"""``Replay``: a step of one token on a GPU, recorded once as a CUDA graph and replayed for each token.

The token and its position are numbers on the device, so the same launches serve all positions. Attention is
launched for the first positions of the cache, a power of two of them, and ends at the token; where a sequence
grows beyond them, a step over more positions is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import cuda_device
from ..errors import GGMLQError, UnsupportedError
from ..ops.attention import attention
from .arithmetic.cuda import LEAST, Cuda
from .arithmetic.kernels import Array, Keys, Seen
from .caches import Cache
from .config import Rope

FEW = 1 << 20  # weights, such as those that rank experts


class Replay:
    """The recorded step of a cache; ``walk`` computes logits in an arithmetic, with another cache."""

    def __init__(self, a: Cuda, cache: Cache, walk: Callable[[Cuda, Any, Array], Array]) -> None:
        self._walk, self._cache = walk, cache
        self._xp = cuda_device().cupy()
        self._a = Fixed(a, self._xp)
        self._pool, self._stream = Pool(self._xp), self._xp.cuda.Stream(non_blocking=True)
        self._graph: Any = None
        self._logits: Any = None

    def __call__(self, token: Any) -> Array:
        """Logits [1, vocabulary] behind one more token of the cache."""
        a, at = self._a, len(self._cache)
        a.token[...] = self._xp.asarray(token)
        a.position.fill(at)
        if at >= a.span or self._graph is None:
            self._record(at)
        self._graph.launch()
        self._cache.advance(1)
        return self._logits.copy()

    def _record(self, at: int) -> None:
        """Record the step, without ``gq.attention`` if a graph cannot hold it."""
        a = self._a
        a.span = min(max(LEAST, 1 << at.bit_length()), self._cache.positions)
        try:
            self._captured()
        except RuntimeError:
            if a.composes:
                raise
            a.composes = True
            self._captured()

    def _captured(self) -> None:
        """Record the step: it runs once before, so that its kernels and memory are there."""
        a, xp = self._a, self._xp
        self._graph = self._logits = None
        rows = FixedCache(self._cache, a)
        xp.cuda.runtime.deviceSynchronize()
        with self._stream, xp.cuda.using_allocator(self._pool):
            self._once(rows)
            self._stream.synchronize()
            self._stream.begin_capture()
            try:
                logits = self._once(rows)
            except BaseException:
                with suppress(RuntimeError):  # the first error is the one that says why
                    self._stream.end_capture()
                raise
            self._graph, self._logits = self._stream.end_capture(), logits

    def _once(self, rows: FixedCache) -> Array:
        self._a.begin()
        return self._walk(self._a, rows, self._a.token)


class Pool:
    """Memory of a graph: what it gives back serves the graph's later steps, and nobody else."""

    kept_for_graphs = True

    def __init__(self, xp: Any) -> None:
        self._pool = xp.cuda.MemoryPool()

    def __call__(self, size: int) -> Any:
        return self._pool.malloc(size)


class Fixed(Cuda):
    """The arithmetic of a step whose position is a number on the device."""

    def __init__(self, a: Cuda, xp: Any) -> None:
        super().__init__(a.device)
        self._tables = a._tables
        self.token, self.position = xp.zeros(1, np.int64), xp.zeros(1, np.int64)
        self.span = 0  # positions that attention goes over
        self._starts: dict[tuple[int, int], Array] = {}  # rows [1, HK, 1] at which heads begin
        self.composes = False  # attention of CuPy's functions alone
        self.length: Array | None = None  # of a step
        self.masks: dict[int, Array] = {}  # of a step, by windows
        self.ids: dict[tuple[int, int], Array] = {}  # of a step: rows of the token, by heads and positions

    def begin(self) -> None:
        """Forget what a step has computed on the device."""
        self.length = None
        self.masks.clear()
        self.ids.clear()

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``; of a few floats by CuPy, for a graph holds no product of cuBLAS."""
        if q.format.block_size > 1 or q.size > FEW:
            return super().linear(x, q, bias)
        y = (x[:, None] * q.dequantize()).sum(axis=-1)
        return y if bias is None else y + bias

    def turns(self, how: Rope, positions: Any, factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of the position: a row of the table."""
        cos, sin = super().turns(how, np.arange(self.span), factors)
        return cos[self.position], sin[self.position]

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention of one query [H, 1, D] over the positions up to its own."""
        key = self._kind(cache, seen)
        if not self.composes and key not in self._refused:
            k, v = (rows.reshape(1, *rows.shape) for rows in (cache.k, cache.v))
            try:
                return attention(
                    q[None], k, v, lengths=self._length(), causal=True, window=seen.window or None,
                    scale=seen.scale, softcap=seen.cap, sinks=seen.sinks,
                )[0]  # fmt: skip
            except UnsupportedError:
                self._refused.add(key)
        return self._composed(q, cache, seen, self._mask(seen.window))

    def ids_of(self, heads: int, positions: int) -> Array:
        """Rows [1, HK, 1] of the token in a cache of so many heads and positions."""
        key = heads, positions
        if key not in self._starts:
            starts = np.arange(heads).reshape(1, heads, 1) * positions
            self._starts[key] = self._xp.asarray(starts)
        if key not in self.ids:
            self.ids[key] = self._starts[key] + self.position
        return self.ids[key]

    def _length(self) -> Array:
        """The number of positions up to the token's, [1]."""
        if self.length is None:
            self.length = self.position + 1
        return self.length

    def _mask(self, window: int) -> Array:
        """The positions that the token sees."""
        if window not in self.masks:
            at = self._xp.arange(self.span)
            mask = at <= self.position
            self.masks[window] = mask & (at > self.position - window) if window else mask
        return self.masks[window]

    def _composed(self, q: Array, cache: Keys, seen: Seen, mask: Array) -> Array:
        """Attention without products of cuBLAS, which a graph cannot hold."""
        xp, (heads, _, width), kv_heads = self._xp, q.shape, cache.k.shape[0]
        q = (q * np.float32(seen.scale)).reshape(kv_heads, -1, 1, width)
        scores = (q * cache.k.dequantize()[:, None]).sum(axis=-1)  # [HK, H / HK, S]
        if seen.cap:
            scores = xp.tanh(scores * np.float32(1 / seen.cap)) * np.float32(seen.cap)
        scores = xp.where(mask, scores, np.float32(-np.inf))
        top = scores.max(axis=-1, keepdims=True)
        if seen.sinks is not None:
            sinks = seen.sinks.reshape(kv_heads, -1, 1)
            top = xp.maximum(top, sinks)
        weights = xp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        if seen.sinks is not None:
            total = total + xp.exp(sinks - top)
        values = cache.v.dequantize()[:, None]
        return ((weights / total)[..., None] * values).sum(axis=2).reshape(heads, 1, -1)


class FixedCache:
    """A cache to which a step of a fixed position puts its rows."""

    def __init__(self, cache: Cache, a: Fixed) -> None:
        self._cache, self._a = cache, a

    def __len__(self) -> int:
        return len(self._cache)

    def appended(self, layer: int, q: Array, k: Array, v: Array) -> tuple[Array, Keys]:
        """Queries as they fit the cache, and the first positions."""
        rows, a = self._cache.layers[layer], self._a
        _, heads, positions, _ = rows.k.shape
        q, k, v = self._cache.turned(q, k, v)
        rows.put(a.ids_of(heads, positions), k[None], v[None])
        return q, self._cache.rows(layer, a.span)

    def back(self, layer: int, y: Array) -> Array:
        """Results of attention as they were before values were turned."""
        return self._cache.back(layer, y)


def replayed(a: Cuda, cache: Cache, walk: Callable[[Cuda, Any, Array], Array], token: Any) -> Array | None:
    """Logits behind one more token by the cache's recorded step; None where none can be recorded."""
    if cache.replay is None:
        cache.replay = Replay(a, cache, walk)
    if cache.replay:
        try:
            return cache.replay(token)
        except (GGMLQError, RuntimeError) as error:
            cache.replay, cache.reason = False, str(error)
    return None
