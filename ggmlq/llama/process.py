"""``Child``: the process in which a user's library runs, its calls, and the error if it dies.

It is a fresh process (never a fork), which serves many calls; after its death the bridge starts another. It
leads a process group of its own, which ends as a whole: a library may have started processes too.
"""

from __future__ import annotations

import _thread
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .. import errors
from ..base.system import kill_group
from ..base.text import printable
from ..errors import DeviceError, LibraryFailedError
from . import emulated
from .protocol import Arrays, GarbledError, receive, send

TAIL = 2000  # characters of the child's stderr that a report quotes
LINGER = 10.0  # seconds that a process may take to end: one in a driver cannot be killed at once

# The child finds ggmlq where this process found it; `-m` would import the folder it runs in.
CODE = "import sys; sys.path[:] = {path!r}; from ggmlq.llama.worker import main; main()"


class Child:
    """One worker process. For one thread at a time; only :meth:`kill` is for any."""

    def __init__(
        self, code: str | None = None, more: Mapping[str, str] | None = None, emulator: str = ""
    ) -> None:
        self.in_step = False  # True once the last question has its whole answer
        self._number = 0
        self._ended = False  # by us
        self._owner = os.getpid()
        variables = emulated.environment() if emulator else os.environ
        self._process = subprocess.Popen(
            emulated.command(emulator)
            if emulator
            else [sys.executable, "-c", code or CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a group of its own, and no Ctrl-C from the terminal
            env={"GGML_NO_BACKTRACE": "1", **(more or {}), **variables},  # ggml would start a debugger
        )
        self._end = weakref.finalize(self, _end, self._process, self._owner)
        self._pipes = Pipes(self._process)

    @classmethod
    def started(
        cls, code: str | None = None, more: Mapping[str, str] | None = None, emulator: str = ""
    ) -> Child:
        """Start a new child, so that no interrupt leaves its process behind.

        ``more``: variables of its environment, where the user has not set them. ``emulator``: with the
        folder of another machine's Python, which runs instead.
        Only the main thread is interrupted. So another one waits between the start of the process and
        the note of its pid; a child that nobody fetches from there is collected, and thereby ended.
        """
        results: list[Child | BaseException] = []
        done = _thread.allocate_lock()
        done.acquire()

        def make() -> None:
            try:
                results.append(cls(code, more, emulator))
            except BaseException as error:
                results.append(error)
            done.release()

        try:
            # A threading.Thread would be waited for at a Condition, whose __exit__ an interrupt breaks
            # ("release unlocked lock"): a bare lock is acquired, or interrupted.
            _thread.start_new_thread(make, ())
            done.acquire()
            (child,) = results
            if isinstance(child, BaseException):
                raise child
            return child
        except (OSError, RuntimeError) as error:  # no more processes or threads
            raise LibraryFailedError(
                f"starting a process for the library: {error}; the system has no room for one more; "
                "end others, or raise the limit of processes"
            ) from error

    @property
    def usable(self) -> bool:
        """True while the process can take a call."""
        return self.in_step and self._process.poll() is None

    def call(self, what: str, message: dict[str, Any], arrays: Arrays, timeout: float) -> Any:
        """Send a message and return the answer; the child's errors are raised here.

        If the child dies, is late or garbles its answer, that is a :class:`LibraryFailedError`.
        """
        self.in_step = False
        self._number += 1
        try:
            with self._pipes.call(timeout):
                send(self._pipes, self._number, message, arrays)
                _, answer, results = receive(self._pipes, self._number)
        except TimeoutError:
            raise self._failed(what, f"gave no answer in {timeout:g} s and was stopped") from None
        except EOFError:
            raise self._failed(what, None) from None
        except GarbledError as error:
            raise self._failed(what, f"wrote into the answers of its process: {error}") from None
        except ValueError:
            if not self._ended:
                raise
            raise self._failed(what, None) from None  # a signal's handler closed the pipes in this thread
        except BaseException:  # an interrupt: the answer would be taken for that of another question
            self.close()
            raise
        self.in_step = True
        if "error" in answer:
            raise self._error(**answer)
        return answer, results

    def _error(self, error: str, text: str) -> Exception:
        """The child's error; where the library failed, with what it printed about it."""
        kind = getattr(errors, error, RuntimeError)
        words = self.tail() if kind in (DeviceError, LibraryFailedError) else ""
        exception: Exception = kind(f"{text}; it said: {words}" if words else text)
        return exception

    def _failed(self, what: str, how: str | None) -> LibraryFailedError:
        """End the process and return the error in words; without ``how`` the process died."""
        if self._ended:
            how = "was closed during the call, by another thread or a signal's handler"
        status = self._process.poll() if how else _wait(self._process, 1.0)
        if how is None:
            how = "closed the pipe of its answers" if status is None else f"died: {_status(status)}"
        self.kill()
        self._pipes.last_words()
        tail = self.tail()
        self.close()
        quote = f"; it said: {tail}" if tail else "; it said nothing on stderr"
        return LibraryFailedError(
            f"{what}: the library {how}{quote}; ggmlq itself goes on, in a fresh process", how, tail
        )

    def tail(self) -> str:
        """The end of what the library printed since the call began."""
        return printable(str(self._pipes.tail)[-TAIL:].strip())

    def kill(self) -> None:
        """End the process, from any thread; a thread that waits for its answer gets an error."""
        self._ended, self.in_step = True, False
        if self._owner == os.getpid():
            _kill(self._process)

    def close(self) -> None:
        """End the process, however busy it is; a forked process lets go of it, for it is the parent's.

        Forgotten children end when they are collected.
        """
        self._ended, self.in_step = True, False
        _end(self._process, self._owner)
        self._end.detach()  # only now: an interrupt above leaves the rest to it


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process, once. Its pipes are closed last: where they are, all is done."""
    try:
        _kill_and_wait(process, owner)
    except BaseException:  # an interrupt: a finalizer loses it, and nobody would end the process any more
        _kill_and_wait(process, owner)
        _close(process)
        raise
    _close(process)


def _kill_and_wait(process: subprocess.Popen[bytes], owner: int) -> None:
    assert process.stdin is not None
    if owner != os.getpid():
        process.returncode = 0  # of a process that is not ours to wait for
    elif not process.stdin.closed:
        _kill(process)
        _wait(process, LINGER)


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to the worker."""
    for stream in (process.stderr, process.stdout, process.stdin):
        assert stream is not None
        stream.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker, and what its library started."""
    assert process.stdin is not None
    if process.stdin.closed:  # its number may be somebody else's by now
        return
    kill_group(process)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit status; None for a process that takes longer to end."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _status(status: int) -> str:
    """An exit status in words: the signal's name where one ended the process."""
    if status >= 0:  # Windows has no signals: 0xc0000005 is its access violation
        return f"exit status {status}" if status < 256 else f"exit status {status:#x}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


# --- pipes: one raw stream that never blocks on a dead worker -------------------------------------
#
# A library may fork, and then another process holds the pipes open though the worker is gone; it may print
# gigabytes; it may stop reading. So we never wait for one pipe alone: while an answer is due, we also look at
# the clock, at the worker's exit and at its stderr.

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


class _Pipes:
    """The pipes of a process, and the tail of what it printed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.tail = Tail()
        self._process = process
        self._requests, self._answers, self._stderr = process.stdin, process.stdout, process.stderr


class PolledPipes(_Pipes):
    """Pipes that can be polled, as everywhere but on Windows. No read or write blocks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
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


class BlockingPipes(_Pipes):
    """Pipes that cannot be polled: threads listen, kill a late worker, and close pipes of dead ones."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self._late = False
        self._listener = threading.Thread(target=_listen, args=(self._stderr, self.tail), daemon=True)
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


# --- reports of sanitizers, which a build prints and goes on ----------------------------------------

REPORT = re.compile(r"runtime error: |(?:Address|Thread|Memory|Leak|UndefinedBehavior)Sanitizer")
REPORTS = 3  # lines of one call that are quoted


def reports_of(said: str) -> str:
    """The lines in which a sanitizer reports something; empty where it reports nothing."""
    lines = [line.strip() for line in said.splitlines() if REPORT.search(line)]
    more = f" and {len(lines) - REPORTS} more" if len(lines) > REPORTS else ""
    return f"a sanitizer says: {'; '.join(lines[:REPORTS])}{more}" if lines else ""


# --- known causes of crashes ----------------------------------------------------------------------

COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.[\d.]+")
SIGNALS = ("SIGSEGV", "SIGILL")
GCC_OF_AMX = 12  # it drops stores to the tile configuration at -O3; 13 keeps them


def cause_of(how: str, layouts: Iterable[str | bool], libraries: Iterable[Path]) -> str:
    """A sentence on the cause of a crash if a known mistake of a compiler explains it; else empty."""
    amx = any(layout is True or str(layout).upper() == "AMX" for layout in layouts)
    if not amx or not any(signal in how for signal in SIGNALS):
        return ""
    if GCC_OF_AMX not in {version for path in libraries for version in _compilers(path)}:
        return ""
    return (
        f"This build is of gcc {GCC_OF_AMX}, which at -O3 drops stores to AMX's tile configuration, so it "
        "may not be the kernel: build with -fno-tree-dse -fno-dse, with -O2 or with gcc 13 (docs/check.md)"
    )


def _compilers(path: Path) -> set[int]:
    """Major versions of gcc that a library names."""
    with suppress(OSError):
        return {int(version) for version in COMPILER.findall(path.read_bytes())}
    return set()
