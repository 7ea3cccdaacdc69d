"""Handlers of signals that end a process, so that its ``finally`` blocks first remove half-written files.

Otherwise SIGTERM and SIGHUP end Python at once. Commands and conversions by workers run under these handlers:
MPI sends such signals to all ranks when one dies. :class:`Whole` delays signals during critical work.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """A context in which these signals raise SystemExit, unless the program has handlers of its own."""
    try:
        handlers = {
            number: signal.signal(number, _leave)
            for name in ("SIGTERM", "SIGHUP")  # Windows lacks the latter
            if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_DFL
        }
    except ValueError:  # only the main thread may ask
        handlers = {}
    try:
        yield
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)  # as a shell counts it


class Whole:
    """Work that no signal cuts short: a handler, such as that of Ctrl-C, runs when the ``with`` block ends.

    Python runs handlers in the main thread alone, so in others there is nothing to hold back. A handler that
    raises while others are exchanged leaves some of ours behind: these then do what the old ones did.
    """

    _begun = False

    def __enter__(self) -> None:
        self._pending: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._wait)
        self._begun = True

    def _wait(self, number: int, frame: FrameType | None) -> None:
        if self._begun:
            self._pending.append(number)
        else:
            self._handlers[number](number, frame)

    def __exit__(self, *raised: object) -> None:
        self._begun = False
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(self._pending):
            signal.raise_signal(number)


def until_imported(name: str) -> contextlib.AbstractContextManager[None]:
    """:class:`Whole` where a module is not imported yet.

    An import of Numba that is cut short leaves modules half made that no further import mends.
    """
    return contextlib.nullcontext() if name in sys.modules else Whole()
