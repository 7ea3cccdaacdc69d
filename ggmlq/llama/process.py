"""A child process that answers messages, and what is said of it when it dies instead.

It is started afresh (never forked), reused from call to call, and started again after a death.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from typing import IO, Any

from .. import errors
from ..errors import DeviceError, LibraryFailedError
from .protocol import Arrays, receive, send

TAIL = 2000  # characters of the child's stderr that a report quotes

# The child finds ggmlq where this process found it; `-m` would import the folder it runs in.
CODE = "import sys; sys.path[:] = {path!r}; from ggmlq.llama.worker import main; main()"


class Child:
    """One worker process."""

    def __init__(self, code: str | None = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._said = 0  # where in the log the present call began
        self._process = subprocess.Popen(
            [sys.executable, "-c", code or CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={"GGML_NO_BACKTRACE": "1", **os.environ},  # ggml would start a debugger
        )
        self._end = weakref.finalize(self, _end, self._process, self._log)

    @property
    def alive(self) -> bool:
        """Whether it can take a call."""
        return self._process.poll() is None

    def call(self, what: str, message: dict[str, Any], arrays: Arrays, timeout: float) -> Any:
        """Its answer; its errors as they are, its death as :class:`LibraryFailedError`."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._said = os.fstat(self._log.fileno()).st_size
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout, give_up)
        timer.start()
        try:
            send(process.stdin, message, arrays)
            answer, results = receive(process.stdout)
        except (EOFError, OSError):
            raise self._died(what, timeout if late.is_set() else None) from None
        finally:
            timer.cancel()
        if "error" in answer:
            raise self._error(**answer)
        return answer, results

    def _error(self, error: str, text: str) -> Exception:
        """The child's error; where the library failed, with what it printed about it."""
        kind = getattr(errors, error, RuntimeError)
        said = self.tail() if kind in (DeviceError, LibraryFailedError) else ""
        found: Exception = kind(f"{text}; it said: {said}" if said else text)
        return found

    def _died(self, what: str, timeout: float | None) -> LibraryFailedError:
        status = self._process.wait()
        if timeout is not None:
            how = f"gave no answer in {timeout:g} s and was stopped"
        else:
            how = f"died: {_status(status)}"
        tail = self.tail()
        self.close()
        said = f"; it said: {tail}" if tail else "; it said nothing on stderr"
        return LibraryFailedError(
            f"{what}: the library {how}{said}; ggmlq itself goes on, in a fresh process", how, tail
        )

    def tail(self) -> str:
        """The end of what the library printed since the call began."""
        self._log.seek(self._said)
        return self._log.read().decode(errors="replace")[-TAIL:].strip()

    def close(self) -> None:
        """End it, however busy it is. Forgotten children end when they are collected."""
        self._end()


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # what was still to be written has no reader
                stream.close()
    log.close()


def _status(status: int) -> str:
    """An exit status in words: the signal's name where one ended the process."""
    if status >= 0:  # Windows has no signals: 0xc0000005 is its access violation
        return f"exit status {status}" if status < 256 else f"exit status {status:#x}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
