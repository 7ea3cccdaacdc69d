"""A hook that lets the command ``ggmlq`` print one line, not a traceback, for Ctrl-C during its imports.

The package imports this first, before NumPy takes its tenth of a second. In any other program it does
nothing.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _is_command() -> bool:
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # so it is called while Python looks for the module
        return "ggmlq" in sys.orig_argv
    return os.path.splitext(os.path.basename(program))[0] == "ggmlq"


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    import contextlib  # here: until the hook is set every import is a moment without it

    for stream in (sys.stdout, sys.stderr):  # a process may have none
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.write("ggmlq: interrupted\n" if stream is sys.stderr else "")
                stream.flush()
    os._exit(130)  # as a shell counts it, and as the command itself leaves later on


if _is_command():
    sys.excepthook = _report
