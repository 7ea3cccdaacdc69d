"""The pipes from the bridge to its worker process, as one raw stream that never blocks on a dead worker.

A library may fork, and then another process holds the pipes open though the worker is gone; it may print
gigabytes; it may stop reading. So we never wait for one pipe alone: while an answer is due, we also look at
the clock, at the worker's exit and at its stderr.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

TAIL_BYTES = 8192  # bytes of stderr: 2000 characters of any alphabet
CHUNK = 1 << 16
STALE = 64  # chunks that are dropped at most before a call: a library may print without end
GLANCE = 0.05  # seconds between looks at a worker that says nothing


class Tail:
    """The last bytes that a worker printed to stderr."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append bytes to the tail."""
        self._bytes += chunk
        del self._bytes[:-TAIL_BYTES]

    def clear(self) -> None:
        """Drop the tail of earlier calls."""
        self._bytes.clear()

    def __str__(self) -> str:
        return self._bytes.decode(errors="replace")


class PolledPipes:
    """Pipes that can be polled, as everywhere but on Windows. No read or write blocks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.tail = Tail()
        self._process = process
        self._requests, self._answers, self._stderr = process.stdin, process.stdout, process.stderr
        self._deaf = False  # stderr is at its end, and would wake every poll
        self._until = 0.0
        for stream in (self._requests, self._answers, self._stderr):
            os.set_blocking(stream.fileno(), False)

    @contextmanager
    def call(self, timeout: float) -> Iterator[None]:
        """A context for the reads and writes of one call; TimeoutError after ``timeout`` seconds.

        It begins a new tail.
        """
        self._until = time.monotonic() + timeout
        self._listen(STALE)
        self.tail.clear()
        yield
        self._listen(STALE)

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read as from a raw file; 0 also where the worker is dead and left nothing."""
        dead = False
        while True:
            got: int | None = self._answers.readinto(buffer)  # type: ignore[attr-defined]
            if got is not None or dead:
                return got
            dead = self._wait(self._answers, select.POLLIN)  # before its death it may have written

    def write(self, data: memoryview, /) -> int:
        """Write as to a raw file; EOFError where nobody will read it."""
        dead = False
        while True:
            try:
                written: int | None = self._requests.write(data)
            except BrokenPipeError:
                raise EOFError("the worker does not listen") from None
            if written is not None:
                return written
            if dead:
                raise EOFError("the worker is dead")
            dead = self._wait(self._requests, select.POLLOUT)

    def last_words(self) -> None:
        """Append the rest of a dead worker's stderr to the tail."""
        self._listen(STALE)

    def _wait(self, stream: IO[bytes], event: int) -> bool:
        """Wait until the stream may be ready; True where the worker is dead."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        poll = select.poll()
        poll.register(stream, event)
        if not self._deaf:
            poll.register(self._stderr, select.POLLIN)
        ready = poll.poll(1e3 * min(left, GLANCE))
        numbers = [number for number, _ in ready]
        if self._stderr.fileno() in numbers:
            self._listen(1)
        return stream.fileno() not in numbers and self._process.poll() is not None

    def _listen(self, chunks: int) -> None:
        """Read what stderr holds, so many chunks at most."""
        for _ in range(chunks):
            chunk = b"" if self._deaf or self._stderr.closed else self._stderr.read(CHUNK)
            if not chunk:
                self._deaf = chunk is not None
                return
            self.tail.add(chunk)


class BlockingPipes:
    """Pipes that cannot be polled: threads listen, kill a late worker, and close pipes of dead ones."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.tail = Tail()
        self._process = process
        self._requests, self._answers = process.stdin, process.stdout
        self._late = False
        self._listener = threading.Thread(target=_listen, args=(process.stderr, self.tail), daemon=True)
        self._listener.start()

    @contextmanager
    def call(self, timeout: float) -> Iterator[None]:
        """A context for the reads and writes of one call; TimeoutError after ``timeout`` seconds.

        It begins a new tail, into which stderr of the call before may still come.
        """
        self.tail.clear()
        timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except EOFError:
            if self._late:
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read as from a raw file."""
        got: int | None = self._answers.readinto(buffer)  # type: ignore[attr-defined]
        return got

    def write(self, data: memoryview, /) -> int:
        """Write as to a raw file; EOFError where nobody will read it."""
        try:
            return self._requests.write(data)
        except OSError:  # Windows says EINVAL of a broken pipe
            raise EOFError("the worker does not listen") from None

    def last_words(self) -> None:
        """Append the rest of a dead worker's stderr to the tail."""
        self._listener.join(1)

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()


def _listen(stderr: IO[bytes], tail: Tail) -> None:
    with suppress(OSError, ValueError):  # closed under its hands
        while chunk := stderr.read(CHUNK):
            tail.add(chunk)


Pipes = PolledPipes if hasattr(select, "poll") else BlockingPipes
