"""Finds the starts of all strings in an array of GGUF metadata: the one hot loop of opening a file.

Strings lie in a chain, a 64-bit length and then the bytes, so nobody knows where string i + 1
starts before string i is read. Walking the chain in Python takes 60 ns a string, 30 ms for a
vocabulary with its merges. Most strings are shorter than 256 bytes, so their length is one byte
and seven zeros, and any seven zeros contain an aligned 32-bit word of zeros. NumPy finds those
words, and with them every possible start, five times as fast.

A candidate proves nothing: text may hold zeros. What is believed is only this: the chain starts
at its first byte; a start whose length leads exactly to the next candidate leads to the next
start; and a start with eight zeros is an empty string, with the next start behind them, so that
zeros from a start on are empty strings. Where nothing of this holds the chain is walked for a
while. So the result is that of the walk, for any bytes whatsoever.

A search costs as much as walking some thousand strings. Therefore an array is walked first and
searched only if it goes on: thousands of small arrays cost no more than their strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .source import Source

WINDOW = 1 << 17  # bytes searched at a time: the temporaries stay in the L2 cache
STRETCH = 1 << 20  # bytes of empty strings taken at a time
SHORT = 1024  # strings walked before the first search
BURST = 32  # strings walked after a break, so that breaks cost little more than a walk;
MAX_BURST = 4096  # twice as many after each break that follows, up to this
BELOW = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)  # mask of the lowest i bytes

Positions = NDArray[np.int64]


class Run(NamedTuple):
    """Consecutive strings: where each starts (with its length), and where the last one ends."""

    starts: Positions
    end: int


class Window(NamedTuple):
    """Possible starts of strings in a stretch of the file, and the place to which each one's length leads."""

    starts: Positions
    following: Positions
    breaks: Positions  # indices at which candidate i does not lead to candidate i + 1


def end(source: Source, at: int, count: int) -> int:
    """The end of an array of ``count`` strings, whose first length is at ``at``."""
    if count > SHORT:
        for run in runs(source, at, count):
            at = run.end
        return at
    unpack, data, room = source.unpack_u64, source.map, source.size - 8
    for _ in range(count):  # as _walk, which keeps more and takes twice as long
        if at > room or (n := unpack(data, at)[0]) > room - at:
            return _walk(source, at, 1).end  # raises
        at += 8 + n
    return at


def runs(source: Source, at: int, count: int) -> Iterator[Run]:
    """The strings of an array of ``count``, whose first length is at ``at``."""
    burst = BURST
    if count:
        run: Run | None = _walk(source, at, min(count, SHORT))
        assert run is not None
        yield run
        at, count = run.end, count - len(run.starts)
    while count:
        # Big-endian lengths have their zeros first: rare files, not worth a second search.
        window = _window(source, at) if source.byteorder == "little" else None
        stop = at + WINDOW
        while count and at < stop:
            run = (window and _linked(window, at, count)) or _empty(source, at, count)
            burst = BURST if run else min(2 * burst, MAX_BURST)
            run = run or _walk(source, at, min(count, burst))
            yield run
            at = run.end
            count -= len(run.starts)


def _linked(window: Window, at: int, count: int) -> Run | None:
    """The strings from ``at`` on, as far as each length leads to the next candidate; or None."""
    first = int(np.searchsorted(window.starts, at))
    if first == len(window.starts) or window.starts[first] != at:
        return None
    last = int(window.breaks[np.searchsorted(window.breaks, first)])
    last = min(last, first + count)
    if first == last:
        return None
    return Run(window.starts[first:last], int(window.following[last - 1]))


def _empty(source: Source, at: int, count: int) -> Run | None:
    """The empty strings from ``at`` on, or None where they are too few to be worth a search."""
    if source.map[at : at + 8 * BURST] != bytes(8 * BURST):
        return None
    count = min(count, (source.size - at) // 8, STRETCH // 8)
    lengths = source.data[at : at + 8 * count].view(np.uint64)
    if lengths.any():
        count = int(np.argmax(lengths != 0))
    return Run(np.arange(at, at + 8 * count, 8), at + 8 * count)


def _window(source: Source, at: int) -> Window:
    """All places near ``at`` that look like the length of a string of 1 to 255 bytes."""
    first = max(at - 4, 0) & ~3
    last = min(first + WINDOW + 16, source.size) & ~3
    words = source.data[first:last].view("<u4")
    zero = np.flatnonzero(words[1:-1] == 0) + 1
    before = words[zero - 1]
    zero, before = zero[before != 0], before[before != 0]
    # The length is the last byte before the zeros: the highest non-zero byte of the word before.
    byte = (before > 0xFF).astype(np.int64) + (before > 0xFFFF) + (before > 0xFFFFFF)
    starts = first + 4 * zero - 4 + byte
    following = starts + 8 + (before >> (8 * byte).astype(np.uint32))
    short = words[zero + 1] & BELOW[byte] == 0  # the last of the seven zeros
    linked = short.copy()
    linked[:-1] &= following[:-1] == starts[1:]
    linked[-1:] = False
    return Window(starts, following, np.flatnonzero(~linked))


def _walk(source: Source, at: int, count: int) -> Run:
    """String after string, each length checked against the bytes left."""
    unpack, data, room = source.unpack_u64, source.map, source.size - 8
    starts = []
    for _ in range(count):
        if at > room:
            source.need(at, 8, "the length of a string")
        (n,) = unpack(data, at)
        if n > room - at:
            source.need(at + 8, n, "a string")
        starts.append(at)
        at += 8 + n
    return Run(np.array(starts, np.int64), at)
