"""The process that compiles for compile_process.py: a family's case and a capability in, code out."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

from ...base.progress import quiet
from ...errors import GGMLQError, MissingDependencyError
from .compile_process import received, send


def compiled(family: str, case: tuple[Any, ...], capability: tuple[int, int]) -> tuple[str, Any]:
    """The answer to a request: "code" and the code, or "missing" or "error" and a text."""
    try:
        importlib.import_module(family.rpartition(".")[0])
        from .launch import FAMILIES  # here, for without numba-cuda the import says what is missing

        with quiet():  # the process that waits shows the progress
            return "code", FAMILIES[family].make(*case).cubin(capability)
    except MissingDependencyError as error:
        return "missing", str(error)
    except GGMLQError as error:
        return "error", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def main() -> None:
    """Answer requests until the input is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            send(answers, compiled(*received(sys.stdin.buffer)))


if __name__ == "__main__":
    main()
