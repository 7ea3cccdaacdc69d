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
from typing import Any

from ..base.devices import cuda_device, cuda_driver
from ..errors import GGMLQError
from .arithmetic.cuda import LEAST, Cuda
from .arithmetic.kernels import Array
from .caches import Memory, Part
from .fixed import Fixed, FixedRows, Size

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
