"""Counters of tickets (last_block.py): words of memory that are 0 whenever no kernel that has them runs.

Kernels on one stream follow each other, so a stream has counters of its own for all its calls. Replays of a
CUDA graph may run beside anything, so each call that a graph records gets counters that nobody else has.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..machine import device

OF_A_STREAM, OF_A_CARD, APART = 1024, 1 << 16, 8  # counters; multiples of those that a graph's call gets
PER_THREAD = 2  # CUDA's name for the stream that each thread has one of


class Counters:
    """The counters of a device: those of each stream, and some for graphs."""

    def __init__(self) -> None:
        self._lock, self._streams = threading.Lock(), dict[Any, Any]()
        self._memory: list[Any] = []  # never given back: graphs may have its addresses; the last for new ones
        self._used = 0

    def address(self, stream: int, count: int, recorded: bool) -> int:
        """The address of ``count`` counters for a call; 0 where there are none."""
        if count > OF_A_STREAM:
            return 0
        with self._lock:
            if recorded:
                return self._of_a_graph(count)
            name = stream, threading.get_ident() if stream == PER_THREAD else 0
            if name not in self._streams:
                self._streams[name] = _zeros(OF_A_STREAM)
            if self._used * 2 >= OF_A_CARD or not self._memory:
                self._memory.append(_zeros(OF_A_CARD))
                self._used = 0
            return int(self._streams[name].data.ptr)

    def _of_a_graph(self, count: int) -> int:
        first, count = self._used, -(-count // APART) * APART
        if not self._memory or first + count > OF_A_CARD:
            return 0
        self._used += count
        return int(self._memory[-1].data.ptr) + 4 * first


def _zeros(count: int) -> Any:
    return device.once("counters of attention", lambda: device.cupy().zeros(count, np.uint32))


_ALL: dict[int, Counters] = {}


def counters(count: int) -> int:
    """The address of counters for a call on the current device and stream, or 0."""
    index = device.current()
    stream = int(device.driver().stream(index).ptr)
    return _ALL.setdefault(index, Counters()).address(stream, count, device.capturing(index))
