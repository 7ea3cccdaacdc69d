"""Warnings in the log named ``ggmlq``, each printed once in a process."""

from __future__ import annotations

import logging

log = logging.getLogger("ggmlq")
_logged: set[str] = set()


def say_once(message: str) -> None:
    """Log a warning, unless this process did before."""
    if message not in _logged:
        _logged.add(message)
        log.warning("ggmlq: %s", message)
