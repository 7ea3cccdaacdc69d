"""Kernels by name: code that came with the package where it is of today's sources, or Numba's.

``kernel("panels.product.direct", layout, rows, target)`` is what the function ``direct`` of that file makes:
a compiled ``work(arguments, start, stop)``. Its file, and Numba with it, are only imported where the code has
to be compiled (``machine/served.py`` says when).
"""

from __future__ import annotations

import os
import threading
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ...base.unwinding import until_imported
from ...store.packs import Origin
from . import served

ROOM = __package__.rpartition(".")[0]  # ggmlq.cpu
_LOCK = threading.RLock()


def _after_fork() -> None:
    """Whoever held it is not in this process."""
    globals()["_LOCK"] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Code(NamedTuple):
    """Code in memory."""

    call: Any  # (address of arguments, start, stop); raises what the code does
    address: int  # of a function in Numba's convention


class Kernel:
    """One of them, by the function that makes it and what that is called with."""

    def __init__(self, name: str, case: tuple[Any, ...]) -> None:
        self.origin = Origin(f"{ROOM}.{name}", case)
        self._code: Code | None = None
        self._absent = False  # from the packs, as far as anybody has asked

    @property
    def code(self) -> Code:
        """Found or compiled when first asked for."""
        if self._code is None:
            with _LOCK:
                if self._code is None:
                    self._code = self._made()
        return self._code

    @property
    def at_hand(self) -> bool:
        """Whether it need not be compiled."""
        if self._code is None and not self._absent:
            with _LOCK:
                self._code = self._code or self._found()
                self._absent = self._code is None
        return self._code is not None

    def _found(self) -> Code | None:
        found = served.loaded(self.origin)
        return None if found is None else Code(found.call, found.address)

    def _made(self) -> Code:
        if (found := self._found()) is not None:
            return found
        file, _, name = self.origin.family.rpartition(".")
        with until_imported("numba"):
            made = getattr(import_module(file), name)(*self.origin.case)
        return Code(made, compiled(made))

    def __repr__(self) -> str:
        return str(self.origin)


@cache
def kernel(name: str, *case: Any) -> Kernel:
    """``file.function`` of this side's, for a case; the same object each time."""
    return Kernel(name, case)


@cache
def compiled(made: Any) -> int:
    """Where the machine code of what Numba compiles is."""
    from numba import types

    signature = (types.int64,) * 3
    made.compile(signature)
    result = made.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
