"""``attach``: judge the nodes of llama.cpp while a Python program runs it, in that program's process.

The program stays unchanged: a hook (``libllama.py``) gives its contexts our callback.

>>> from ggmlq.trace import attach
>>> with attach("model.gguf") as seen:                       # doctest: +SKIP
...     llama_cpp.Llama("model.gguf").create_completion("Hello")
>>> [p.node for p in seen if not p.ok]                       # doctest: +SKIP
[]

There is no second process here: a library that dies takes the program with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..llama.library import Symbols
from ..llama.program import Node
from .libllama import Hook, locate_llama
from .product import Product
from .settings import settings
from .tracer import Tracer
from .verdicts import Judge

_TRACERS: list[Tracer] = []  # a context made within `with` calls its callback as long as it lives


class _Here:
    """Memory for a product's arrays in this process; a tracer uses it like a ``SharedFile``."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[np.uint8]] = []

    def note(self, facts: dict[str, Any]) -> None:
        """Drop the facts: there is no other process to read them."""

    def room(self, lengths: list[int]) -> tuple[list[NDArray[np.uint8]], list[list[int]]]:
        """New arrays of these lengths in bytes, and the index and length of each."""
        self.arrays = [np.empty(length, np.uint8) for length in lengths]
        return self.arrays, [[i, n] for i, n in enumerate(lengths)]


class Attached:
    """A trace within ``with``; iteration and ``len`` give the nodes that were judged so far."""

    def __init__(
        self, model: str | Path, lib: str | Path | None, select: Sequence[str] | str, judge: str, nodes: str
    ) -> None:
        options = settings(model, lib=lib, select=select, judge=judge, nodes=nodes)
        self._file = gguf.open(options.model)
        self._judge = Judge(self._file, options.judge)
        self._here, self._products = _Here(), list[Product]()
        build, path = locate_llama(lib)
        symbols = Symbols(build, whole=True)
        library = ctypes.CDLL(str(path.absolute()), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        self._tracer = Tracer(symbols, self._here, self._tell, set(self._file), options.asks, counts=True)
        self._hook = Hook(symbols, library, self._tracer.callback)
        _TRACERS.append(self._tracer)

    def _tell(self, message: dict[str, Any]) -> None:
        arrays = dict(zip(message["places"], self._here.arrays, strict=True))
        node = message["op"], message["step"], message["parts"], arrays, tuple(message["words"])
        self._products.append(self._judge.record(Node(*node, changed=tuple(message["changed"]))))

    def __iter__(self) -> Iterator[Product]:
        return iter(list(self._products))

    def __len__(self) -> int:
        return len(self._products)

    @property
    def others(self) -> dict[str, int]:
        """The number of nodes of each operation that compute something and that nobody judges."""
        return dict(self._tracer.others)

    def __enter__(self) -> Attached:
        self._hook.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.__exit__(*error)
        self._tracer.off = True
        if error[0] is None and self._tracer.error is not None:
            raise self._tracer.error


def attach(
    model: str | Path, *, lib: str | Path | None = None, select: Sequence[str] | str = (), judge: str = "all",
    nodes: str = "all",
) -> Attached:  # fmt: skip
    """Judge every node that this process's libllama computes within ``with``, in contexts made there.

    Parameters
    ----------
    model : str or Path
        The GGUF file that the program runs: weights are taken from it by their names.
    lib : str or Path, optional
        The libllama that the program uses, by default that of llama-cpp-python. 64-bit Linux only.
    select, judge, nodes :
        As in :func:`ggmlq.trace.trace`.
    """
    return Attached(model, lib, select, judge, nodes)
