"""Progress bars for long work, and warnings. tqdm is imported when the first bar is shown."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from .terminal import is_terminal

AFTER = 2.0  # seconds of work before a bar appears

_quiet = threading.local()


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which this thread's work shows no bars, because the caller shows one."""
    before = getattr(_quiet, "now", False)
    _quiet.now = True
    try:
        yield
    finally:
        _quiet.now = before


@contextmanager
def long_work(what: str, waited: float = 0.0) -> Iterator[None]:
    """A context that prints one line on a terminal if its work, which has no count, takes long.

    ``waited``: seconds of such work before this, about which no line was printed.
    """
    if not is_terminal(sys.stderr) or getattr(_quiet, "now", False):
        yield
        return
    timer = threading.Timer(max(AFTER - waited, 0.0), _say, [f"ggmlq: {what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # whoever closed stderr does not want to know
        print(line, file=sys.stderr, flush=True)


class Progress:
    """Counts bytes (or another unit); becomes a tqdm bar on a terminal when it takes long.

    ``show``: True for a bar at once and anywhere, False for none.
    """

    def __init__(self, total: int, does: str, unit: str = "B", show: bool | None = None) -> None:
        self._total, self._done, self._does, self._unit = total, 0, does, unit
        self._bar: Any = None
        self._start = time.monotonic()
        self._show = False if getattr(_quiet, "now", False) else show
        self._after = 0.0 if show else AFTER

    def advance(self, n: int) -> None:
        """Count ``n`` more as done."""
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
        elif self._show is not False and time.monotonic() - self._start >= self._after:
            # The stream is looked at here: most work is over long before.
            self._show = is_terminal(sys.stderr) if self._show is None else self._show
            self._bar = self._shown() if self._show else None

    def _shown(self) -> Any:
        from tqdm import tqdm

        return tqdm(total=self._total, initial=self._done, unit=self._unit, unit_scale=True, desc=self._does)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


# --- warnings in the log named ggmlq, each printed once in a process ----------------------------

_logged: set[str] = set()


def say_once(message: str) -> None:
    """Log a warning, unless this process did before."""
    if message not in _logged:
        import logging

        _logged.add(message)
        logging.getLogger("ggmlq").warning("ggmlq: %s", message)
