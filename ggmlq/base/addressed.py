"""A hook by which ``gq.open`` opens addresses (``https://…``, ``hf://…``) without importing ``ggmlq.remote``.

``ggmlq.remote`` imports the readers of files, so they cannot import it. It registers its ``open`` here, and
is loaded by name when the first address is opened, because it imports modules that few programs need.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

OPENERS: list[Callable[[str], Any | None]] = []  # gives None for what is no address after all


def opener(function: Callable[[str], Any | None]) -> Callable[[str], Any | None]:
    """Decorate the function that opens addresses, to register it."""
    OPENERS[:] = [function]
    return function


def opened(path: object) -> Any | None:
    """The open model at an address; None where the path is no address."""
    if not isinstance(path, str) or "://" not in path:
        return None
    if not OPENERS:
        importlib.import_module(f"{__package__.partition('.')[0]}.remote")
    return OPENERS[0](path)
