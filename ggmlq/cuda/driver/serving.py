"""The library that serves a thread's products on GPUs: CuPy, or torch under CuPy's names."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any


class _Serving(threading.local):
    """Torch's library while it serves this thread; None: CuPy does."""

    torch: Any = None


SERVING = _Serving()


@cache
def torch_library() -> Any:
    """Torch under CuPy's names; the caller has imported torch."""
    return import_module(f"{__package__}.torch_library").TorchLibrary(sys.modules["torch"])


def is_torch() -> bool:
    """True where torch serves this thread."""
    return SERVING.torch is not None


@contextmanager
def served_by(torch: bool = True) -> Iterator[Any]:
    """A context in which torch serves this thread, and which gives its library; or, not ``torch``, CuPy."""
    before, SERVING.torch = SERVING.torch, torch_library() if torch else None
    try:
        yield SERVING.torch
    finally:
        SERVING.torch = before
