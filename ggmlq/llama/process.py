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
from typing import IO, Any

from .. import errors
from ..errors import LibraryDiedError
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

    @property
    def alive(self) -> bool:
        """Whether it can take a call."""
        return self._process.poll() is None

    def call(self, what: str, message: dict[str, Any], arrays: Arrays, timeout: float) -> Any:
        """Its answer; its errors as they are, its death as :class:`LibraryDiedError`."""
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
            kind = getattr(errors, answer["error"], RuntimeError)
            raise kind(answer["text"])
        return answer, results

    def _died(self, what: str, timeout: float | None) -> LibraryDiedError:
        status = self._process.wait()
        if timeout is not None:
            how = f"gave no answer in {timeout:g} s and was stopped"
        else:
            how = f"died: {_status(status)}"
        tail = self.tail()
        self.close()
        said = f"; it said: {tail}" if tail else "; it said nothing on stderr"
        return LibraryDiedError(
            f"{what}: the library {how}{said}; ggmlq itself goes on, in a fresh process", how, tail
        )

    def tail(self) -> str:
        """The end of what the library printed since the call began."""
        self._log.seek(self._said)
        return self._log.read().decode(errors="replace")[-TAIL:].strip()

    def close(self) -> None:
        """End it, however busy it is."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was still to be written has no reader
                    continue
        self._log.close()


def _status(status: int) -> str:
    """An exit status in words: the signal's name where one ended the process."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
