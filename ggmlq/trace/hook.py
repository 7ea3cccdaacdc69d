"""A callback in place of the one that libllama passes to ``ggml_backend_sched_set_eval_callback``.

The program needs no change: we set one slot of libllama's import table and read no struct.
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
    """Inside ``with``, every scheduler whose callback libllama sets gets ``callback`` instead."""

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
