"""``Tape``: the launches of some work, made again for other arrays: those of a layer, for one like it.

Python takes a millisecond for the launches of a layer, whose words are those of the layer before but for
addresses: of weights, of keys and values, of the rows that go in and come out. So the words are kept, and
addresses are written over. What a stream does beside our launches is noticed by :func:`nodes`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from . import calls, device
from .submit import TAPING, LoadedLaunch, PreparedLaunches


class Span(NamedTuple):
    """Memory on a device."""

    first: int
    nbytes: int


def span_of(array: Any) -> Span:
    """The memory of an array, from its first number to its last one."""
    last = sum(step * (size - 1) for size, step in zip(array.shape, array.strides, strict=True) if size)
    return Span(int(array.data.ptr), last + array.itemsize)


@contextmanager
def taped() -> Iterator[list[LoadedLaunch]]:
    """A context whose launches are listed meanwhile, in this thread."""
    steps: list[LoadedLaunch] = []
    TAPING.steps = steps
    try:
        yield steps
    finally:
        TAPING.steps = None


def nodes(stream: int) -> int | None:
    """Nodes of the graph that a stream records so far; None where the driver does not tell."""
    count = ctypes.c_size_t()
    try:
        _, graph = device.capture_of(stream)
        calls.call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    except (OSError, AttributeError, calls.CUDADriverError):
        return None
    return count.value


class Tape:
    """Listed launches; ``spans``: memory that may lie elsewhere when they are repeated.

    ``words``: arguments in no span; ``used``: the spans of the others.
    """

    def __init__(self, steps: Sequence[LoadedLaunch], spans: Sequence[Span]) -> None:
        firsts, ends = _ends(spans)
        self._launches = PreparedLaunches(steps)
        words = self._words = np.frombuffer(self._launches.words, np.uint64)
        arguments = np.ones(len(words), bool)
        for shape_at, _, arguments_at, _ in self._launches.launches:
            arguments[shape_at // 8 : arguments_at // 8] = False
        inside = (words[:, None] >= firsts) & (words[:, None] < ends) & arguments[:, None]
        (self._at,) = np.nonzero(inside.any(axis=1))  # places of addresses, their spans and their offsets
        self._span = inside[self._at].argmax(axis=1)
        self._offsets = words[self._at] - firsts[self._span]
        self.words: list[int] = words[arguments & ~inside.any(axis=1)].tolist()
        self.used = {*self._span.tolist()}

    def strangers(self, spans: Sequence[Span], known: Sequence[tuple[int, int]]) -> bool:
        """True if words look like addresses among those of ``spans``, and lie in no memory that is known."""
        firsts, ends = _ends(spans)
        words = np.array(self.words, np.uint64)
        words = words[(words >= firsts.min()) & (words < ends.max())]
        firsts, ends = _ends(known)
        return not bool(((words[:, None] >= firsts) & (words[:, None] < ends)).any(axis=1).all())

    def repeat(self, firsts: Sequence[int], stream: int) -> None:
        """Make the launches with spans that begin at ``firsts``."""
        self._words[self._at] = np.array(firsts, np.uint64)[self._span] + self._offsets
        self._launches.launch((), stream)


def _ends(spans: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    """The first addresses of memory, and those behind it."""
    firsts = np.array([first for first, _ in spans], np.uint64)
    return firsts, firsts + np.array([size for _, size in spans], np.uint64)
