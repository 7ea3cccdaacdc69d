"""Python calls of the package, counted: a count is the same on any machine, where time is not."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import ggmlq

HERE = str(Path(ggmlq.__file__).parent)


def python_calls(work):
    """Calls of the package's functions while ``work()`` runs, by their names."""
    calls = Counter()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HERE):
            calls[code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
