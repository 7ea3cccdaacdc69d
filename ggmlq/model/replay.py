"""``replayed``: a step on a GPU by CUDA graphs, recorded the first time that its size comes.

Graphs belong to the memory of keys and values, which outlives caches (caches.py): the same ones serve each
cache that lives there. Sizes are a short list, to which steps are filled up. While one graph runs the next
one is recorded, so the first step of a size waits for the host a little; from the second on graphs are
replayed, which takes microseconds. The first step of a model prepares its weights, and is not recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain, islice, repeat
from threading import Lock
from typing import Any

from ..base.devices import cuda_device, cuda_driver
from ..errors import GGMLQError
from .alike import Alike
from .arithmetic.cuda import LEAST, Cuda
from .arithmetic.kernels import Array
from .caches import Memory
from .fixed import Fixed, FixedRows, Pieces, Size

FEW = 16  # tokens, up to which sizes are exact; then they are some, close where a step takes long
SIZES = *range(1, FEW + 1), 32, 64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048
QUERIES = 1 << 16  # of packed rows, with those that fill up sequences
FIRST, LAYERS = (2, 1, 1), 4  # parts of a step of several tokens that a graph has; the device begins early
STEPS = 64  # recorded ones of a memory
WHOLE = 64  # tokens of a step, up to which one with the logits of all of them is recorded: drafts have few
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
        self.spans: list[tuple[int, int]] | None = None  # of what was allocated for a step
        self.held: list[Any] | None = None  # memory that is not used twice in a step
        self.lasting = xp.cuda.get_allocator()  # for what is prepared while a step runs: graphs write here

    def __call__(self, size: int) -> Any:
        memory, before = self._pool.malloc(size), self._total
        if self.spans is not None:
            self.spans.append((memory.ptr, size))
        if self.held is not None:
            self.held.append(memory)
        self._total = self._pool.total_bytes()
        self.version += self._total not in (before, before - (-size // UNIT) * UNIT)
        return memory

    def drop(self) -> None:
        """Give back memory that is free."""
        self._pool.free_all_blocks()


class Replay:
    """A step of one size over a memory; ``walk`` computes its logits."""

    def __init__(self, a: Cuda, memory: Memory, size: Size, arena: Arena) -> None:
        self._a, self._arena, self._logits = Fixed(a, memory, size), arena, None
        self._graphs, self._version = list[Any](), 0

    def __call__(self, memory: Memory, pieces: Pieces, walk: Walk) -> Array:
        """Logits [B, vocabulary] behind more tokens; those of a sequence without tokens mean nothing."""
        self._a.set(pieces)
        if self._graphs and self._version == self._arena.version:
            for graph in self._graphs:
                graph.launch()
        else:
            self._record(memory, walk)
        return self._logits

    def _begin(self, memory: Memory, walk: Walk) -> Iterator[Array]:
        return walk(self._a, FixedRows(memory, self._a), self._a.inputs["tokens"])

    def _record(self, memory: Memory, walk: Walk) -> None:
        """Record the step, and launch each graph as soon as it is there."""
        arena, graphs, cuda = self._arena, list[Any](), cuda_device().cupy().cuda
        self._graphs, self._logits, self._version = [], None, arena.version
        stream = cuda.get_current_stream()
        parts = memory.depth + 2  # the embedding, each layer, the logits
        sizes = chain(FIRST, repeat(LAYERS)) if self._a.size.each > 1 else repeat(parts)
        arena.spans, self._a.alike = [], Alike(memory, arena, self._a.known)
        with arena.stream, cuda.using_allocator(arena), ExitStack() as end:
            end.callback(self._recorded)
            steps = self._begin(memory, walk)
            while parts > 0:
                each = next(sizes)
                parts -= each
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

    def _recorded(self) -> None:
        self._a.alike = self._arena.spans = None


def replayed(a: Cuda, pieces: Pieces, walk: Walk, last: bool) -> Array | None:
    """Logits behind more tokens of sequences, or the ``last`` of each; None where no step can be recorded."""
    memory, gpu, numbers = pieces[0][0].memory, cuda_driver(), [part.number for part, _ in pieces]
    if not last and pieces[0][0].lease is None:  # it is used once
        return None
    if gpu.stream(gpu.device()).ptr != memory.stream:  # its graphs would run beside others in one arena
        return None
    if any(part.memory is not memory for part, _ in pieces) or len({*numbers}) < len(numbers):
        return None
    if (size := _size(memory, pieces, last)) is None:
        return None
    arena = memory.arenas.get(memory.stream) or memory.arenas.setdefault(
        memory.stream, Arena(cuda_device().cupy())
    )
    with arena.lock:  # another thread's graphs would write where these go on reading
        step = memory.steps.pop(size, None)
        if step is None:
            step = Replay(a, memory, size, arena)
        while len(memory.steps) >= STEPS:
            memory.steps.pop(next(iter(memory.steps)))  # the one that was not used for the longest time
        memory.steps[size] = step
        if step is False:
            return None
        try:
            logits: Array = step(memory, pieces, walk)
        except (GGMLQError, RuntimeError) as error:
            memory.steps[size], memory.reason = False, str(error)
            return None
        if size.whole:
            count = sum(len(tokens) for _, tokens in pieces)
            logits = (logits[-count:] if size.batch == 1 else logits[:count]).copy()
        else:
            places = [number - size.first for number in numbers]
            logits = logits.copy() if places == [*range(len(logits))] else logits[places]
    for part, some in pieces:
        part.advance(len(some))
    return logits


def _size(memory: Memory, pieces: Pieces, last: bool) -> Size | None:
    """The size of a step; None for one that is too large."""
    counts = [len(tokens) for _, tokens in pieces]
    end = max(len(part) + count for (part, _), count in zip(pieces, counts, strict=True))
    most, rows, each, first, batch = max(counts), padded(sum(counts)), 1, 0, memory.batch
    whole = not last and most > 1
    if most == 1 < batch:
        rows = batch
    else:
        first, batch = _window([part.number for part, _ in pieces], batch)
        each = rows if batch == 1 else SIZES[max(bisect_left(SIZES, most), FEW - 1)]
    if not rows or (most > 1 < batch and batch * each > QUERIES) or (whole and rows > WHOLE):
        return None
    span = min(max(LEAST, 1 << (end - 1).bit_length()), memory.room)
    return Size(first, batch, rows, each, span, whole)


def _window(numbers: list[int], batch: int) -> tuple[int, int]:
    """The first of some sequences that follow each other and hold these, and their count: one of few."""
    low, high, count = min(numbers), max(numbers), 1
    while high >= (first := low // (step := max(count // 2, 1)) * step) + count:
        count *= 2
    return first, min(count, batch - first)


def padded(count: int) -> int:
    """Tokens of a recorded step of so many; 0 where there is none."""
    return SIZES[bisect_left(SIZES, count)] if count <= SIZES[-1] else 0
