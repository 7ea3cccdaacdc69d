"""A process that is asked to end leaves by way of its ``finally`` blocks, which remove half-written files.

SIGTERM and SIGHUP end Python at once otherwise. Commands run like that, and conversions by workers: MPI ends
all ranks in this way when one of them dies.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Meanwhile these signals raise SystemExit, unless somebody has a use for them already."""
    try:
        kept = {
            number: signal.signal(number, _leave)
            for name in ("SIGTERM", "SIGHUP")  # Windows lacks the latter
            if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_DFL
        }
    except ValueError:  # only the main thread may ask
        kept = {}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)  # as a shell counts it
