"""``Child``: the process in which a user's library runs, its calls, and the error if it dies.

It is a fresh process (never a fork), which serves many calls; after its death the bridge starts another. It
leads a process group of its own, which ends as a whole: a library may have started processes too.
"""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import errors
from ..base.text import printable
from ..errors import DeviceError, LibraryFailedError
from .pipes import Pipes
from .protocol import Arrays, GarbledError, receive, send

TAIL = 2000  # characters of the child's stderr that a report quotes
LINGER = 10.0  # seconds that a process may take to end: one in a driver cannot be killed at once

# The child finds ggmlq where this process found it; `-m` would import the folder it runs in.
CODE = "import sys; sys.path[:] = {path!r}; from ggmlq.llama.worker import main; main()"


class Child:
    """One worker process. For one thread at a time; only :meth:`kill` is for any."""

    def __init__(self, code: str | None = None, more: Mapping[str, str] | None = None) -> None:
        self.in_step = False  # True once the last question has its whole answer
        self._number = 0
        self._ended = False  # by us
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code or CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a group of its own, and no Ctrl-C from the terminal
            env={"GGML_NO_BACKTRACE": "1", **(more or {}), **os.environ},  # ggml would start a debugger
        )
        self._end = weakref.finalize(self, _end, self._process, self._owner)
        self._pipes = Pipes(self._process)

    @classmethod
    def started(cls, code: str | None = None, more: Mapping[str, str] | None = None) -> Child:
        """Start a new child, so that no interrupt leaves its process behind.

        ``more``: variables of its environment, where the user has not set them.
        Only the main thread is interrupted. So another one waits between the start of the process and
        the note of its pid; a child that nobody fetches from there is collected, and thereby ended.
        """
        results: list[Child | BaseException] = []
        done = _thread.allocate_lock()
        done.acquire()

        def make() -> None:
            try:
                results.append(cls(code, more))
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
    if sys.platform == "win32":
        process.kill()
        return
    with suppress(ProcessLookupError, PermissionError):  # what macOS says of a dead group
        os.killpg(process.pid, signal.SIGKILL)


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
