"""What a function is: its code and all that it refers to, as a short digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np


def identity(value: Any) -> str:
    """The same for the same code over the same constants, in any process."""
    digest = hashlib.blake2b(digest_size=10)
    for part in _parts(value, set()):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Everything that decides what compiled code does, in a fixed order."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value  # Numba's wrappers
    if isinstance(function, FunctionType):
        if id(function) not in seen:
            seen.add(id(function))
            yield from _function(function, seen)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield repr(value.co_names).encode()
        for constant in value.co_consts:
            yield from _parts(constant, seen)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, ModuleType | type) or callable(value):
        yield getattr(value, "__name__", type(value).__name__).encode()
    else:
        yield repr(value).encode()


def _function(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    code = function.__code__
    yield function.__module__.encode()
    yield function.__name__.encode()
    yield from _parts(code, seen)
    for name in code.co_freevars:
        yield name.encode()
    for cell in function.__closure__ or ():
        yield from _parts(cell.cell_contents, seen)
    for name in code.co_names:
        if name in function.__globals__:
            yield from _parts(function.__globals__[name], seen)
    yield from _parts(function.__defaults__ or (), seen)
