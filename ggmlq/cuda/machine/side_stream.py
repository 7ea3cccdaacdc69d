"""A second stream, for work beside that of the current one; it joins the current one at the end.

Streams are reused, one user at a time. A stream that a CUDA graph has recorded belongs to that recording
until it ends, so it is skipped until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import device


class SideStream(NamedTuple):
    """A stream, with events for the start and the end of its work."""

    stream: Any
    begun: Any
    done: Any


_FREE: dict[int, list[SideStream]] = {}  # free ones of each device


def _borrow(index: int) -> SideStream:
    free, recording = _FREE.setdefault(index, []), []
    try:
        while free:
            try:
                side = free.pop()
            except IndexError:  # another thread took the last one
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
    """A context with a stream that starts where ``main`` is; ``main`` waits for it at the end, always."""
    side = _borrow(index)
    side.begun.record(main)
    side.stream.wait_event(side.begun)
    try:
        yield side.stream
    finally:
        side.done.record(side.stream)
        main.wait_event(side.done)
        _FREE[index].append(side)
