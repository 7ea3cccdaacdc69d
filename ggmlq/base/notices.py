"""Sentences for people who did not ask: to the log of ``ggmlq``, each of them once a process."""

from __future__ import annotations

import logging

log = logging.getLogger("ggmlq")
_said: set[str] = set()


def say_once(message: str) -> None:
    """Log a warning, unless this process did before."""
    if message not in _said:
        _said.add(message)
        log.warning("ggmlq: %s", message)
