"""``Tape``: the launches of some work, made again for other arrays: those of a layer, for one like it.

Python takes a millisecond for the launches of a layer, whose words are those of the layer before but for
addresses: of weights, of keys and values, of the rows that go in and come out. So the words are kept, and
addresses are written over. Work that is no launch of ours is on the tape as a function (:func:`done`); what
else a stream does is noticed by :func:`nodes`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
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
def taped() -> Iterator[list[Any]]:
    """A context whose launches, and functions of :func:`done`, are listed meanwhile, in this thread."""
    steps: list[Any] = []
    TAPING.steps = steps
    try:
        yield steps
    finally:
        TAPING.steps = None


def done(work: Callable[[], None]) -> None:
    """Do work that reads and writes no array whose place may be another one, and put it on the tape."""
    work()
    if TAPING.steps is not None:
        TAPING.steps.append(work)


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
    """Listed steps; ``spans``: memory that may lie elsewhere when they are repeated."""

    def __init__(self, steps: Sequence[Any], spans: Sequence[Span]) -> None:
        firsts, ends = _ends(spans)
        self._parts: list[Any] = []  # functions, or launches with places, spans and offsets of their words
        self.words, self.used = list[int](), set[int]()  # arguments in no span; spans of the others
        for ours, group in groupby(steps, lambda step: type(step) is LoadedLaunch):
            if not ours:
                self._parts += group
                continue
            launches = PreparedLaunches(group)
            words = np.frombuffer(launches.words, np.uint64)
            arguments = np.ones(len(words), bool)
            for shape_at, _, arguments_at, _ in launches.launches:
                arguments[shape_at // 8 : arguments_at // 8] = False
            inside = (words[:, None] >= firsts) & (words[:, None] < ends) & arguments[:, None]
            (at,) = np.nonzero(inside.any(axis=1))
            span = inside[at].argmax(axis=1)
            self._parts.append((launches, words, at, span, words[at] - firsts[span]))
            self.words += words[arguments & ~inside.any(axis=1)].tolist()
            self.used |= {*span.tolist()}

    def strangers(self, spans: Sequence[Span], known: Sequence[tuple[int, int]]) -> bool:
        """True if words look like addresses among those of ``spans``, and lie in no memory that is known."""
        firsts, ends = _ends(spans)
        words = np.array(self.words, np.uint64)
        words = words[(words >= firsts.min()) & (words < ends.max())]
        firsts, ends = _ends(known)
        return not bool(((words[:, None] >= firsts) & (words[:, None] < ends)).any(axis=1).all())

    def repeat(self, firsts: Sequence[int], stream: int) -> None:
        """Make the launches with spans that begin at ``firsts``."""
        places = np.array(firsts, np.uint64)
        for part in self._parts:
            if type(part) is not tuple:
                part()
                continue
            launches, words, at, span, offsets = part
            words[at] = places[span] + offsets
            launches.launch((), stream)


def _ends(spans: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    """The first addresses of memory, and those behind it."""
    firsts = np.array([first for first, _ in spans], np.uint64)
    return firsts, firsts + np.array([size for _, size in spans], np.uint64)
