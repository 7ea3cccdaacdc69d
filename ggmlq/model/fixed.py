"""``Fixed``: the arithmetic of a recorded step, whose tokens and positions are numbers on the device.

The same launches serve all tokens and positions: rows of the cache, turns and lengths follow from the inputs.
Attention is launched for the first positions of the cache, ``span`` of them, and ends at each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import cuda_device, cuda_module, is_host
from ..errors import UnsupportedError
from .arithmetic.cuda import Cuda
from .arithmetic.kernels import Array, Keys, Seen
from .caches import Heads, Memory
from .config import Rope
from .rope import Turns

FEW = 1 << 20  # weights, such as those that rank experts


class Size(NamedTuple):
    """The size of a recorded step."""

    first: int  # number of the first sequence
    batch: int  # sequences
    each: int  # tokens of a sequence
    span: int  # positions that attention goes over


class Fixed(Cuda):
    """The arithmetic of a step of some size; its rows are the tokens of one sequence after the other."""

    def __init__(self, a: Cuda, memory: Memory, size: Size) -> None:
        super().__init__(a.device)
        self.size, self._tables, self._refused = size, a._tables, a._refused
        xp, rows = cuda_device().cupy(), size.batch * size.each
        self._inputs = xp.zeros(2 * rows + 2 * size.batch, np.int64)
        self.tokens, self.positions = self._inputs[:rows], self._inputs[rows : 2 * rows]
        self.lengths, self.ends = self._inputs[2 * rows :].reshape(2, size.batch)
        self._starts = {  # rows [T, HK] at which the heads of each token's sequence begin
            heads: xp.asarray(
                np.repeat([memory.starts(heads, size.first + b) for b in range(size.batch)], size.each, 0)
            )
            for heads in {layer.k.shape[1] for layer in memory.layers}
        }
        self._places: dict[int, Array] = {}  # of a step: rows [T, HK] of the tokens, by heads
        self._masks: dict[int, Array] = {}  # of a step, by windows
        self._turned: dict[Rope, tuple[Array, Array]] = {}  # tables that graphs read

    def begin(self) -> None:
        """Forget what a step has computed on the device."""
        self._places.clear()
        self._masks.clear()

    def set(self, tokens: Sequence[Any], starts: Sequence[int]) -> None:
        """Write the inputs: the tokens of each sequence and the position of its first one.

        A sequence that has fewer is filled up. Keys and values of what fills it up lie behind its end, where
        no token sees them and later ones replace them.
        """
        (_, batch, each, _), firsts = self.size, np.asarray(starts)
        numbers = np.zeros(self._inputs.shape, np.int64)
        ids, positions = numbers[: 2 * batch * each].reshape(2, batch, each)
        lengths, ends = numbers[2 * batch * each :].reshape(2, batch)
        for b, some in enumerate(tokens):
            if is_host(some):
                ids[b, : len(some)] = some
            ends[b] = b * each + max(len(some), 1) - 1
        positions[...] = firsts[:, None] + np.arange(each)
        lengths[...] = firsts + each
        self._inputs[...] = self._xp.asarray(
            numbers
        )  # by way of CuPy's pinned memory: the host does not wait
        on_device = [(b, some) for b, some in enumerate(tokens) if not is_host(some)]
        if on_device and len(on_device) == len(self.tokens):  # of each sequence its only token
            self.tokens[...] = self._xp.concatenate(tokens)
        else:
            for b, some in on_device:
                self.tokens[b * each : b * each + len(some)] = some

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``; of a few floats by a kernel, for a graph holds no product of cuBLAS."""
        if q.format.block_size > 1 or q.size > FEW:
            return super().linear(x, q, bias)
        y = cuda_module("activations.router").scored(x, q.dequantize())
        return y if bias is None else y + bias

    def turns(self, how: Rope, positions: Any, factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of the positions: rows of the table."""
        cos, sin = self._turned[how] = super().turns(how, np.arange(self.size.span), factors)
        return cos[self.positions], sin[self.positions]

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention of queries [B, H, T, D] over the positions up to each one's own."""
        y = self.attended(q, cache, seen, self.lengths)
        return self._composed(q, cache, seen, self._mask(seen.window)) if y is None else y

    def places(self, heads: int) -> Array:
        """Rows [T, HK] of the tokens in a layer of so many heads."""
        if heads not in self._places:
            self._places[heads] = self._starts[heads] + self.positions[:, None]
        return self._places[heads]

    def _mask(self, window: int) -> Array:
        """The positions [B, 1, 1, S] that the only token of each sequence sees."""
        if window not in self._masks:
            at, place = self._xp.arange(self.size.span), self.positions[:, None, None, None]
            mask = at <= place
            self._masks[window] = mask & (at > place - window) if window else mask
        return self._masks[window]

    def _composed(self, q: Array, cache: Keys, seen: Seen, mask: Array) -> Array:
        """Attention of a token of each sequence without products of cuBLAS, which a graph cannot hold."""
        xp, (batch, heads, each, width), kv_heads = self._xp, q.shape, cache.k.shape[1]
        if each > 1:
            raise UnsupportedError("a step of several tokens is recorded where gq.attention has a kernel")
        q = (q * np.float32(seen.scale)).reshape(batch, kv_heads, -1, 1, width)
        scores = (q * cache.k.dequantize()[:, :, None]).sum(axis=-1)  # [B, HK, H / HK, S]
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
        values = cache.v.dequantize()[:, :, None]
        return ((weights / total)[..., None] * values).sum(axis=3).reshape(batch, heads, 1, -1)


class FixedRows:
    """The rows of a recorded step on their way into memory."""

    def __init__(self, memory: Memory, a: Fixed) -> None:
        self._memory, self._a = memory, a

    def following(self, count: int) -> Array:
        """The positions of the tokens, on the device."""
        return self._a.positions

    def last(self, count: int) -> Any:
        """The last row of each sequence; None where they have no others."""
        return None if self._a.size.each == 1 else self._a.ends

    def appended(self, layer: int, q: Array, k: Array, v: Array | None) -> tuple[Array, Keys]:
        """Queries [B, H, T, D] as they fit the cache, and the first positions of the sequences."""
        memory, (first, batch, each, span) = self._memory, self._a.size
        q, k, v = memory.turned(q, k, v)
        memory.layers[layer].put(self._a.places(k.shape[1]), k, v)
        q = q.reshape(batch, each, *q.shape[1:]).transpose(0, 2, 1, 3)
        return cuda_device().cupy().ascontiguousarray(q), memory.rows(layer, first, batch, span)

    def placed(self, layer: int, heads: Heads, turns: Turns) -> tuple[Array, Keys] | None:
        """Queries and keys as :meth:`appended` gives them, turned; None where that takes several launches."""
        memory, (first, batch, _, span) = self._memory, self._a.size
        q = memory.placed(layer, heads, turns, self._a.places(heads[1].shape[1]), batch)
        return None if q is None else (q, memory.rows(layer, first, batch, span))

    def back(self, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were turned."""
        y = self._memory.back(y)
        return y.transpose(1, 0, 2, 3).reshape(y.shape[1], -1, y.shape[3])

    def advance(self, count: int) -> None:
        """Positions are counted by who replays the step."""
