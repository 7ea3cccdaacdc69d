"""Compiled functions of Numba on the disk, as entries of the store.

Numba's own cache looks at the file of a function only, and would run old code after a change to a
function that it calls.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
from functools import cache
from typing import Any

from numba.core.caching import CompileResultCacheImpl

from ...base.unwinding import Whole
from ...store.origin import Origin
from .features import compiled_for, cpu_name
from .served import STORE


@cache
def _machine() -> str:
    """The CPU that Numba compiles for, and the Python whose objects entries hold."""
    facts = (platform.python_implementation(), platform.python_version(), *sorted(compiled_for()))
    return f"{cpu_name()}-{hashlib.blake2b(repr(facts).encode(), digest_size=6).hexdigest()}"


def load(origin: Origin, context: Any) -> Any:
    """The compiled function of an origin, or None if the disk does not have it."""
    content = STORE.load(origin, _machine())
    if content is None:
        return None
    try:
        with Whole():  # an exception in LLVM's Python may free memory twice
            context.refresh()
            return _serial().rebuild(context, pickle.loads(content))
    except Exception:  # the file is of another version after all: the function can be compiled again
        return None


def save(origin: Origin, result: Any) -> None:
    """Write a compiled function to the disk, if Numba can."""
    if not (result.lifted or result.library.has_dynamic_globals):
        STORE.save(origin, _machine(), pickle.dumps(_serial().reduce(result), pickle.HIGHEST_PROTOCOL))


def _serial() -> Any:
    """Numba's own way to write and read compiled functions; it needs nothing of its instance."""
    return CompileResultCacheImpl.__new__(CompileResultCacheImpl)
