"""A second stream, for work that may run beside that of the current one; it ends before what comes after.

Streams are kept and taken by one user at a time. One that a CUDA graph has recorded stays part of that
recording until it ends, so it is passed over as long as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import device


class SideStream(NamedTuple):
    """A stream, and what says that those before it, and it, have come so far."""

    stream: Any
    begun: Any
    done: Any


_FREE: dict[int, list[SideStream]] = {}  # of each device, those that nobody uses


def _taken(index: int) -> SideStream:
    free, recording = _FREE.setdefault(index, []), []
    try:
        while free:
            try:
                side = free.pop()
            except IndexError:  # another thread has taken the last one
                break
            if not side.stream.is_capturing():
                return side
            recording.append(side)
    finally:
        free += recording
    cuda = device.cupy().cuda
    return SideStream(
        cuda.Stream(non_blocking=True), cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
    )


@contextmanager
def fork(index: int, main: Any) -> Iterator[Any]:
    """A stream that begins where ``main`` is, and that ``main`` waits for afterwards, errors or none."""
    side = _taken(index)
    side.begun.record(main)
    side.stream.wait_event(side.begun)
    try:
        yield side.stream
    finally:
        side.done.record(side.stream)
        main.wait_event(side.done)
        _FREE[index].append(side)
