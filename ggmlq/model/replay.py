"""``replayed``: a step on a GPU by CUDA graphs, recorded once for its size.

A size is run as it is at first: kernels are loaded and weights prepared for it then. The second time it is
recorded, and each graph runs while the next one is recorded. From the third time on graphs are replayed,
which takes the host a few microseconds. Sizes are rounded up: prompts of nearly equal length share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..base.devices import cuda_device, cuda_driver, is_host
from ..errors import GGMLQError, UnsupportedError
from .arithmetic.cuda import LEAST, Cuda
from .arithmetic.kernels import Angles, Array, Keys, Seen
from .caches import Heads, Memory, Part
from .config import Rope

# --- Fixed: a step whose tokens and positions are numbers on the device ----------------------
# The same launches serve all tokens and positions: rows of the cache, angles and lengths follow from the
# inputs. Attention is launched for the first positions of the cache, ``span`` of them, and ends at each
# token.


class Size(NamedTuple):
    """The size of a recorded step."""

    first: int  # number of the first sequence
    batch: int  # sequences
    each: int  # tokens of a sequence
    span: int  # positions that attention goes over


class Fixed(Cuda):
    """The arithmetic of a step of some size; its rows are the tokens of one sequence after the other."""

    def __init__(self, a: Cuda, memory: Memory, size: Size) -> None:
        super().__init__(a.device, a.invariant)
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
        self._angles: dict[Rope, tuple[Array, Array]] = {}  # tables that graphs read

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

    def angles(self, how: Rope, positions: Any, factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of the positions: rows of the table."""
        cos, sin = self._angles[how] = super().angles(how, np.arange(self.size.span), factors)
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

    @property
    def repeats(self) -> bool:
        """False: no kernels of the host write keys and values."""
        return False

    def following(self, count: int) -> Array:
        """The positions of the tokens, on the device."""
        return self._a.positions

    def last(self, count: int) -> Any:
        """The last row of each sequence; None where they have no others."""
        return None if self._a.size.each == 1 else self._a.ends

    def appended(self, layer: int, q: Array, k: Array, v: Array | None) -> tuple[Array, Keys]:
        """Queries [B, H, T, D] as they fit the cache, and the first positions of the sequences."""
        memory, (first, batch, each, span) = self._memory, self._a.size
        q, k, v = memory.spread(q, k, v)
        memory.layers[layer].put(self._a.places(k.shape[1]), k, v)
        q = q.reshape(batch, each, *q.shape[1:]).transpose(0, 2, 1, 3)
        return cuda_device().cupy().ascontiguousarray(q), memory.rows(layer, first, batch, span)

    def rope_append(self, layer: int, heads: Heads, angles: Angles) -> tuple[Array, Keys] | None:
        """Queries and keys as :meth:`appended` gives them, with RoPE; None: it takes several launches."""
        memory, (first, batch, _, span) = self._memory, self._a.size
        q = memory.rope_append(layer, heads, angles, self._a.places(heads[1].shape[1]), batch)
        return None if q is None else (q, memory.rows(layer, first, batch, span))

    def back(self, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were spread."""
        y = self._memory.back(y)
        return y.transpose(1, 0, 2, 3).reshape(y.shape[1], -1, y.shape[3])

    def advance(self, count: int) -> None:
        """Positions are counted by who replays the step."""


# --- recorded steps --------------------------------------------------------------------------

FEW = 16  # tokens of a sequence, up to which sizes are exact, and by which they grow
ROWS = 2560  # tokens of a step: with more the device takes longer than the host
LAYERS = 4  # of several tokens that a graph has
STEPS = 32  # recorded ones of a cache
UNIT = 512  # bytes by which CuPy allocates

# (arithmetic, rows, tokens): the rows behind each layer, then logits.
Walk = Callable[[Cuda, Any, Array], Iterator[Array]]


class Arena:
    """The memory that all recorded steps of a model on a stream share, and the stream that records them.

    Graphs follow each other on that one stream, so what one leaves serves the next: all of them together
    take the memory of the largest. ``version`` counts how often the pool gave memory back to the device,
    where it had run out: graphs from before must not run any more.
    """

    kept_for_graphs = True  # what is free serves these graphs alone

    def __init__(self, xp: Any) -> None:
        self.stream, self._pool = xp.cuda.Stream(non_blocking=True), xp.cuda.MemoryPool()
        self.lock, self.version, self._total = Lock(), 0, 0
        self.lasting = xp.cuda.get_allocator()  # for what is prepared while a step runs: graphs write here

    def __call__(self, size: int) -> Any:
        memory, before = self._pool.malloc(size), self._total
        self._total = self._pool.total_bytes()
        self.version += self._total not in (before, before - (-size // UNIT) * UNIT)
        return memory


class Replay:
    """A step of one size over a cache's memory; ``walk`` computes its logits."""

    def __init__(self, a: Cuda, memory: Memory, size: Size) -> None:
        self._xp = cuda_device().cupy()
        self._a = Fixed(a, memory, size)
        if memory.stream not in memory.arenas:
            memory.arenas[memory.stream] = Arena(self._xp)
        self._arena: Arena = memory.arenas[memory.stream]
        self._ran, self._graphs, self._version = False, list[Any](), 0
        self._logits: Any = None

    def __call__(self, memory: Memory, tokens: Sequence[Any], starts: Sequence[int], walk: Walk) -> Array:
        """Logits [B, vocabulary] behind more tokens of each sequence."""
        with self._arena.lock:  # another thread's graphs would write where these go on reading
            self._a.set(tokens, starts)
            if not self._ran:
                return self._run(memory, walk)
            if self._graphs and self._version == self._arena.version:
                for graph in self._graphs:
                    graph.launch()
            else:
                self._record(memory, walk)
            return self._logits.copy()

    def _begin(self, memory: Memory, walk: Walk) -> Iterator[Array]:
        self._a.begin()
        return walk(self._a, FixedRows(memory, self._a), self._a.tokens)

    def _run(self, memory: Memory, walk: Walk) -> Array:
        """Run the step as it is, so that all kernels and the memory are there."""
        arena, xp = self._arena, self._xp
        xp.cuda.runtime.deviceSynchronize()
        with arena.stream, xp.cuda.using_allocator(arena):
            for x in self._begin(memory, walk):
                logits = x
            arena.stream.synchronize()
        self._ran = True
        return logits.copy()

    def _record(self, memory: Memory, walk: Walk) -> None:
        """Record the step, and launch each graph as soon as it is there."""
        arena, xp, graphs = self._arena, self._xp, list[Any]()
        self._graphs, self._logits, self._version = [], None, arena.version
        stream = xp.cuda.get_current_stream()
        parts = len(memory.layers) + 2  # the embedding, each layer, the logits
        each = LAYERS if self._a.size.each > 1 else parts
        with arena.stream, xp.cuda.using_allocator(arena):
            steps = self._begin(memory, walk)
            for _ in range(0, parts, each):
                arena.stream.begin_capture()
                try:
                    for x in islice(steps, each):
                        logits = x
                except BaseException:
                    with suppress(RuntimeError):  # the first error is the one that says why
                        arena.stream.end_capture()
                    raise
                graphs.append(arena.stream.end_capture())
                graphs[-1].launch(stream)
            next(steps, None)
        self._graphs, self._logits = graphs, logits


def replayed(a: Cuda, parts: Sequence[Part], tokens: Sequence[Any], walk: Walk) -> Array | None:
    """Logits [B, vocabulary] behind more tokens of neighbouring sequences, none of some of them.

    None where the step cannot be recorded, or where that does not pay.
    """
    memory, size, gpu = parts[0].memory, _size(parts, tokens), cuda_driver()
    if gpu.stream(gpu.device()).ptr != memory.stream:  # its graphs would run beside others in one arena
        return None
    if size is None or (step := memory.steps.get(size)) is False:
        return None
    if step is None:
        if len(memory.steps) >= STEPS:
            memory.steps.pop(next(iter(memory.steps)))
        step = memory.steps[size] = Replay(a, memory, size)
    try:
        logits: Array = step(memory, tokens, list(map(len, parts)), walk)
    except (GGMLQError, RuntimeError) as error:
        memory.steps[size], memory.reason = False, str(error)
        return None
    for part, some in zip(parts, tokens, strict=True):
        part.advance(len(some))
    return logits


def _size(parts: Sequence[Part], tokens: Sequence[Any]) -> Size | None:
    """The size of a step; None for one that is too large, whose memory is too short, or mostly filled up."""
    counts, room = list(map(len, tokens)), parts[0].memory.room
    count = padded(max(counts))
    rows, end = len(parts) * count, max(map(len, parts)) + count
    if end > room or (count > 1 and (rows > ROWS or (len(parts) > 1 and 4 * rows > 5 * sum(counts)))):
        return None
    return Size(parts[0].number, len(parts), count, min(max(LEAST, 1 << (end - 1).bit_length()), room))


def padded(count: int) -> int:
    """Tokens of a recorded step: the number itself if small, else a multiple of 16, or a sixteenth more."""
    if count <= FEW:
        return count
    step = max(FEW, (1 << (count - 1).bit_length()) // (2 * FEW))
    return -(-count // step) * step
