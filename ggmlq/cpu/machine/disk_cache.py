"""The cache of compiled CPU kernels on the disk: a folder for each state of the sources, an entry a function.

Numba's own cache looks at the file of a function only, and would run old code after a change to a
function that it calls. Here the folder, a generation, stands for a digest of every source file that compiled
code can come from, of the versions of Numba and Python, and of the CPU that is compiled for; an entry in it
stands for a function with all its constants.
"""

from __future__ import annotations

import pickle
import sys
from functools import cache
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl

from ...store import sources
from ...store.disk import Generation
from .features import compiled_for, cpu_name

SOURCES = ("codes", "cpu", "formats", "gru")  # of the package: what compiled code comes from


@cache
def generation() -> Generation:
    """The folder of code for this process's sources and CPU."""
    return Generation("cpu", _key)


def load(entry: str, context: Any) -> Any:
    """The compiled function of an entry, or None if the disk does not have it."""
    content = generation().load(entry)
    if content is None:
        return None
    try:
        context.refresh()
        return _serial().rebuild(context, pickle.loads(content))
    except Exception:  # the file is of another version after all: the function can be compiled again
        return None


def save(entry: str, result: Any) -> None:
    """Write a compiled function to the disk, if Numba can."""
    if not (result.lifted or result.library.has_dynamic_globals):
        generation().save(entry, pickle.dumps(_serial().reduce(result), pickle.HIGHEST_PROTOCOL))


def examine() -> dict[str, Any]:
    """The folder of compiled code, and the size of its files."""
    return generation().examine()._asdict()


def _key() -> str:
    facts = (sys.version, numba.__version__, llvmlite.__version__, cpu_name(), *sorted(compiled_for()))
    return sources.digest(SOURCES, facts)


def _serial() -> Any:
    """Numba's own way to write and read compiled functions; it needs nothing of its instance."""
    return CompileResultCacheImpl.__new__(CompileResultCacheImpl)
