"""Forks of this process, which wait for other threads, and their children, which begin anew.

A fork waits until no other thread imports or compiles. A child has only the thread that forked it: a lock
that another thread held stays taken there for ever, and the next product would wait for it. Such locks are
llvmlite's, Numba's compiler lock, that of kernels, and those of modules that were being imported.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from .system import at_fork

ROOMS = {"ggmlq", "numba", "llvmlite", "numpy"}  # not all: what others import may wait for this very fork
TURNS = 100  # of waiting, each for an import that began while the last one was waited for

KERNELS = threading.RLock()  # held while a kernel is loaded or compiled

_held: list[Any] = []  # by the thread that forks; only one at a time has KERNELS


def _half_made() -> list[str]:
    """The modules of ours that some thread is importing: those that Python has a lock for."""
    locks = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    return [name for name in list(locks) if name.partition(".")[0] in ROOMS]


def _locks() -> list[Any]:
    """The locks in the order in which a compilation takes them, outermost first."""
    compiler = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    return [KERNELS, *(lock for lock in (compiler, getattr(library, "_lock", None)) if lock is not None)]


def _before() -> None:
    """Take all locks at a moment when nothing is half imported.

    Imports are waited for without any lock, which they may need themselves.
    """
    for turn in range(TURNS):
        for name in _half_made():  # one of this very thread is not waited for
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for lock in _locks():
            lock.__enter__()
            _held.append(lock)
        if turn == TURNS - 1 or not _half_made():
            return
        _after()


def _after() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)


def in_child(renew: Callable[[], object]) -> None:
    """Call a function in each forked child, where threads and the owners of locks are gone."""
    at_fork(after_in_child=renew)


at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
