"""Numba's names for files that emit LLVM code or define types, and the dispatcher of compiled functions.

Compiled code is kept on the disk (``disk_cache.py``), so that a kernel is compiled once for a user, not for
a process. Importing this imports Numba.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numba
from numba import extending as _extending
from numba.core import cgutils as _cgutils
from numba.core.base import BaseContext as _Code
from numba.core.imputils import lower_constant as _lower_constant
from numba.core.registry import CPUDispatcher
from numba.core.typing.context import BaseContext as _Types
from numba.extending import intrinsic as _intrinsic

from ...base.progress import AFTER, long_work
from ...base.unwinding import Whole
from ...store.origin import Origin, described, origin_of
from . import disk_cache

# Numba's types say too little of these to check anything.
cgutils: Any = _cgutils
intrinsic: Any = _intrinsic
extending: Any = _extending
lower_constant: Any = _lower_constant


def load_whole(kind: Any) -> None:
    """Make contexts of one of Numba's classes load their tables without a signal's handler in between.

    Numba reads the tables from generators. An exception in a generator, as Ctrl-C raises it, ends it for
    good, and then nothing more is compiled in this process.
    """
    refresh = kind.refresh

    def whole(self: Any) -> None:
        with Whole():
            refresh(self)

    kind.refresh = whole


for _kind in (_Types, _Code):  # classes: a context of one's own would be aimed at this CPU at once
    load_whole(_kind)

_unreported = [0.0]  # seconds of compiling without a message: many short waits are a long one


def dispatcher(function: Callable[..., Any], on_disk: bool, **options: Any) -> Any:
    """Numba's dispatcher of a function, with our way to the disk."""
    result: Any = numba.njit(**options)(function)
    result.__class__ = Dispatcher
    result._cache = _OnDisk(function, on_disk)
    return result


class DispatcherType(numba.types.Dispatcher):
    """Numba's type of a compiled function that another one calls or gets as an argument."""


extending.register_model(DispatcherType)(extending.models.OpaqueModel)


@lower_constant(DispatcherType)
def _no_address(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Lower a kernel as nothing: its type says which function it is.

    Numba would write down its address as well, which keeps the calling code off the disk.
    """
    return context.get_dummy_value()


class Dispatcher(CPUDispatcher):
    """A compiled function that has ``DispatcherType`` as its type."""

    @property
    def _numba_type_(self) -> Any:
        return DispatcherType(self)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


class _OnDisk:
    """The cache that Numba asks for a compiled function before it compiles one.

    The function is renamed after its definition and what it holds. Symbols of compiled code are made of
    names and of a number that counts functions in a process; code of two processes would share symbols
    otherwise, and of two functions made by one factory the second would silently run the first.
    """

    cache_path = ""

    def __init__(self, function: Any, on_disk: bool) -> None:
        self._function, self._on_disk, self._name = function, on_disk, ""
        self._report, self._begun = ExitStack(), 0.0

    def _origin(self, signature: Any) -> Origin:
        return origin_of(self._function, str(signature))

    def load_overload(self, signature: Any, context: Any) -> Any:
        if not self._name:
            self._name = f"{self._function.__name__}_{_digest(described(self._function))}"
            self._function.__qualname__ = self._name
        result = disk_cache.load(self._origin(signature), context) if self._on_disk else None
        if result is None and self._on_disk:  # it is compiled next, with all that it calls
            what = f"compiling {self._function.__name__} for this CPU, once"
            self._report.enter_context(long_work(what, _unreported[0]))
            self._begun = time.monotonic()
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        self._report.close()
        if self._begun:
            _unreported[0] += time.monotonic() - self._begun
            _unreported[0] *= _unreported[0] < AFTER
            self._begun = 0.0
        if self._on_disk:
            disk_cache.save(self._origin(signature), result)

    def flush(self) -> None:
        """Do nothing: no entry waits to be written."""
