"""``replayed``: a step on a GPU by CUDA graphs, recorded once for its size.

A size is run as it is at first: kernels are loaded and weights prepared for it then. The second time it is
recorded, and each graph runs while the next one is recorded. From the third time on graphs are replayed,
which takes the host a few microseconds. Sizes are rounded up: prompts of nearly equal length share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from ..base.devices import cuda_device
from ..errors import GGMLQError
from .arithmetic.cuda import LEAST, Cuda
from .arithmetic.kernels import Array
from .caches import Memory, Part
from .fixed import Fixed, FixedRows, Size

FEW = 16  # tokens of a sequence, up to which sizes are exact, and by which they grow
ROWS = 2560  # tokens of a step: with more the device takes longer than the host
LAYERS = 4  # of several tokens that a graph has
STEPS = 32  # recorded ones of a cache

Walk = Callable[
    [Cuda, Any, Array], Iterator[Array]
]  # (arithmetic, rows, tokens): rows of layers, then logits


class Arena:
    """The stream that steps of a cache are recorded on, and the memory that all of them share."""

    kept_for_graphs = True  # what it gives back serves later steps of these graphs, and nobody else

    def __init__(self, xp: Any) -> None:
        self.stream, self._pool = xp.cuda.Stream(non_blocking=True), xp.cuda.MemoryPool()

    def __call__(self, size: int) -> Any:
        return self._pool.malloc(size)


class Replay:
    """A step of one size over a cache's memory; ``walk`` computes its logits."""

    def __init__(self, a: Cuda, memory: Memory, size: Size) -> None:
        self._xp = cuda_device().cupy()
        self._a = Fixed(a, memory, size)
        if memory.arena is None:
            memory.arena = Arena(self._xp)
        self._ran, self._graphs = False, list[Any]()
        self._logits: Any = None

    def __call__(self, memory: Memory, tokens: Sequence[Any], starts: Sequence[int], walk: Walk) -> Array:
        """Logits [B, vocabulary] behind more tokens of each sequence."""
        self._a.set(tokens, starts)
        if self._graphs:
            for graph in self._graphs:
                graph.launch()
        elif self._ran:
            self._record(memory, walk)
        else:
            return self._run(memory, walk)
        return self._logits.copy()

    def _begin(self, memory: Memory, walk: Walk) -> Iterator[Array]:
        self._a.begin()
        return walk(self._a, FixedRows(memory, self._a), self._a.tokens)

    def _run(self, memory: Memory, walk: Walk) -> Array:
        """Run the step as it is, so that all kernels and the memory are there."""
        arena, xp = memory.arena, self._xp
        xp.cuda.runtime.deviceSynchronize()
        with arena.stream, xp.cuda.using_allocator(arena):
            for x in self._begin(memory, walk):
                logits = x
            arena.stream.synchronize()
        self._ran = True
        return logits.copy()

    def _record(self, memory: Memory, walk: Walk) -> None:
        """Record the step, and launch each graph as soon as it is there."""
        arena, xp, graphs = memory.arena, self._xp, list[Any]()
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
    memory, size = parts[0].memory, _size(parts, tokens)
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
    """Tokens of a recorded step: the number itself if it is small, else up to a sixteenth more."""
    if count <= FEW:
        return count
    step = max(FEW, (1 << (count - 1).bit_length()) // (2 * FEW))
    return -(-count // step) * step
