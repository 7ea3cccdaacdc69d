"""Starts writing a new file's bytes to the disk while more are written, so that the final fsync is short."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

LEAST = 1 << 20  # bytes that are worth a call


class Writeback:
    """A thread that starts the writing back of ranges of a file; ``with`` waits for it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0
        self._ranges: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def written(self, n: int) -> None:
        """Count bytes that were written to the file."""
        if n >= LEAST and hasattr(os, "posix_fadvise"):
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._ranges.put((self._at, n))
        self._at += n

    def _run(self) -> None:
        while (span := self._ranges.get()) is not None:
            with contextlib.suppress(OSError):  # only advice: fsync reports what goes wrong
                # Linux starts to write back dirty pages of the range, and drops only clean ones.
                os.posix_fadvise(self._fd, *span, os.POSIX_FADV_DONTNEED)

    def __enter__(self) -> Writeback:
        return self

    def __exit__(self, *error: object) -> None:
        self._ranges.put(None)
        if self._thread is not None:
            self._thread.join()
