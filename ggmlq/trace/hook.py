"""A callback in place of whoever's: libllama's calls of ``ggml_backend_sched_set_eval_callback`` come here.

So a program that knows nothing of a trace is traced: no parameter of it is touched, and no struct read.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from types import TracebackType
from typing import Any

from ..llama.symbols import Symbols
from .elf import import_slot
from .libllama import EVAL

NAME = "ggml_backend_sched_set_eval_callback"
SET = ctypes.CFUNCTYPE(None, c_void_p, EVAL, c_void_p)


class Hook:
    """From ``with`` to its end every graph of the library asks this callback."""

    def __init__(self, symbols: Symbols, libllama: ctypes.CDLL, callback: Any) -> None:
        real = SET(ctypes.cast(getattr(symbols, NAME), c_void_p).value or 0)
        self._slot = import_slot(libllama, NAME)
        self._ours = SET(lambda sched, theirs, data: real(sched, callback, None))
        self._before = self._slot.value

    def __enter__(self) -> Hook:
        self._slot.value = ctypes.cast(self._ours, c_void_p).value or 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slot.value = self._before
