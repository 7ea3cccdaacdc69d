"""Makes libllama call a trace's callback for each node, in a program that knows nothing of the trace.

libllama passes its own callback to ``ggml_backend_sched_set_eval_callback``. We redirect that call by one
slot of libllama's import table (``elf.py``) and pass ours instead. No struct is read.
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
SETTER = ctypes.CFUNCTYPE(None, c_void_p, EVAL, c_void_p)


class Hook:
    """While ``with`` lasts, every scheduler gets ``callback`` when libllama sets its callback."""

    def __init__(self, symbols: Symbols, libllama: ctypes.CDLL, callback: Any) -> None:
        real = SETTER(ctypes.cast(getattr(symbols, NAME), c_void_p).value or 0)
        self._slot = import_slot(libllama, NAME)
        self._ours = SETTER(lambda sched, theirs, data: real(sched, callback, None))
        self._before = self._slot.value

    def __enter__(self) -> Hook:
        self._slot.value = ctypes.cast(self._ours, c_void_p).value or 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slot.value = self._before
