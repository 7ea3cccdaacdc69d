"""A short digest of a function: of its code and of all that it refers to.

It names a kernel's entry in the cache. Docstrings and line numbers do not count. Names of modules are not
followed; the digest of all source files (``sources.py``), which is part of the cache's path, covers these.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

OPTIMIZED, HAS_DOCSTRING = 0x1, 0x4000000  # flags of code: of a function; with a docstring, from Python 3.14


def identity(value: Any) -> str:
    """A digest that is equal for equal code over equal constants, in any process."""
    digest = hashlib.blake2b(digest_size=10)
    for part in _parts(value, set()):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(value: Any, visited: set[int]) -> Iterator[bytes]:
    """Everything that decides what compiled code does, in a fixed order."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value  # Numba's wrappers
    if isinstance(function, FunctionType):
        if id(function) not in visited:
            visited.add(id(function))
            yield from _function(function, visited)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield repr(value.co_names).encode()
        for constant in value.co_consts[_first_is_docstring(value) :]:
            yield from _parts(constant, visited)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item, visited)
    elif isinstance(value, frozenset):
        yield repr(sorted(map(repr, value))).encode()  # its own order differs between processes
    elif isinstance(value, ModuleType | type) or (callable(value) and hasattr(value, "__name__")):
        yield f"{getattr(value, '__module__', '')} {value.__name__}".encode()
    else:
        text = repr(value)
        assert " at 0x" not in text, f"{text} has an address, which is another one in each process"
        yield text.encode()


def _first_is_docstring(code: CodeType) -> bool:
    """True where the first constant stands in a docstring's place; before Python 3.14 it may be None."""
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & HAS_DOCSTRING)
    is_function = code.co_flags & OPTIMIZED and not code.co_name.startswith("<")
    return bool(is_function and code.co_consts and isinstance(code.co_consts[0], str | None))


def _function(function: FunctionType, visited: set[int]) -> Iterator[bytes]:
    code = function.__code__
    yield function.__module__.encode()
    yield function.__name__.encode()
    yield from _parts(code, visited)
    for name in code.co_freevars:
        yield name.encode()
    for cell in function.__closure__ or ():
        yield from _parts(cell.cell_contents, visited)
    for name in code.co_names:
        if name in function.__globals__:
            yield from _parts(function.__globals__[name], visited)
    yield from _parts(function.__defaults__ or (), visited)
