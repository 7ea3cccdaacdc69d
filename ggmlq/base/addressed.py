"""Addresses (``https://…``, ``hf://…``), which readers of files open by a hook.

``ggmlq.remote`` imports the readers, so they cannot import it; and it imports modules that few programs need.
"""

from __future__ import annotations

from typing import Any

from .hooks import Hook

_OPENED = Hook("models at addresses")  # gives None for what is no address after all


def opened(path: object) -> Any | None:
    """The open model at an address; None where the path is no address."""
    return _OPENED(path) if isinstance(path, str) and "://" in path else None
