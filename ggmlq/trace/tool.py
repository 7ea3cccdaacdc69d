"""Runs a command of llama.cpp, such as ``llama-completion``, unchanged in the process that is traced.

Since 2026 the main function of ``llama-completion`` and its like is in a library of its own,
``libllama-completion-impl``, as ``int llama_completion(int, char **)`` of C++. We call it with the words of
its command line; redirected calls (``hook.py``) give its graphs our callback.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int
from pathlib import Path

from ..errors import LibraryFailedError, MissingDependencyError, UnsupportedError

PLACES = ("", "bin", "lib", "build/bin", "../bin", "../lib")
MODEL = ("-m", "--model")


def run_tool(folder: Path, words: Sequence[str], model: str) -> None:
    """Run a command to its end; the model is added where its words name none."""
    name = Path(words[0]).name
    library = _library(folder, name)
    symbol = name.replace("-", "_")
    try:
        function = getattr(library, f"_Z{len(symbol)}{symbol}iPPc")
    except AttributeError:
        raise UnsupportedError(
            f"{words[0]}: {library._name} has no function {symbol}(int, char **); it is of another year; "
            "trace the model without a command"
        ) from None
    line = [*words] if any(word in MODEL for word in words) else [words[0], MODEL[0], model, *words[1:]]
    argv = (c_char_p * (len(line) + 1))(*(word.encode() for word in line), None)
    function.restype = c_int
    status = function(c_int(len(line)), argv)
    if status:
        raise LibraryFailedError(f"{' '.join(line)}: ended with status {status}; try it without the trace")


def _library(folder: Path, name: str) -> ctypes.CDLL:
    for place in PLACES:
        path = folder / place / f"lib{name}-impl.so"
        if path.is_file():
            try:
                return ctypes.CDLL(str(path.absolute()))
            except OSError as error:
                raise MissingDependencyError(f"{name}: cannot load {path}: {error}; build it anew") from error
    raise MissingDependencyError(
        f"{name}: there is no lib{name}-impl.so in {folder} or beside it; a command is traced where its main "
        "function is in a shared library (llama.cpp of 2026, -DBUILD_SHARED_LIBS=ON, on Linux); otherwise "
        "trace the model without a command"
    )
