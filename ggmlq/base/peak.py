"""The most memory that this process has had."""

from __future__ import annotations

import importlib
import sys

UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of the system's figure: macOS counts these


def peak_bytes() -> int | None:
    """The most bytes of memory that this process has had at a time; None where the system tells none."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * UNIT
