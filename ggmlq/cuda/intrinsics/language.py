"""Numba's words as GPU kernels import them (``cuda``, ``uint32``, …), or blanks where nothing is compiled.

The words are those of numba_cuda.py. All are typed ``Any``: in a kernel ``uint32(x)`` is a conversion, which
Numba's annotations do not know.

Where code of kernels came with the package (``cuda/prebuilt``) most processes compile nothing. Then the words
are blanks (language.py), Numba is not imported, and a kernel that must be compiled after all is compiled by
another process (driver/compile_process.py). Numba's own words are taken where they cost nothing, because
``numba.cuda`` is imported already, where there is neither CuPy nor torch and so no GPU, and with
GGMLQ_COMPILE_HERE=1. Where numba-cuda is missing, too, blanks tell what a card of another machine would take.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

from ...base import missing
from ...errors import MissingDependencyError

# Stand-ins for Numba's words where nothing is compiled: importing Numba takes a second, blanks no time.
#
# A module of kernels names types, decorates functions and builds closures when it is imported. Blanks answer
# all of that with further blanks, which remember their names and arguments, and do nothing. So code that
# launches a kernel works as it is, and only the compiler needs the words themselves.

# Attributes of types that are read while kernels are made: their arguments.

FACTS = {"types.UniTuple()": ("dtype", "count"), "types.Array()": ("dtype", "ndim", "layout")}


class Blank:
    """A name, or the result of calling it; equal to another one that reads the same."""

    def __init__(self, path: str, arguments: tuple[Any, ...] = ()) -> None:
        self.path, self.arguments = path, arguments

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        facts = FACTS.get(self.path, ())
        if name in facts:
            return self.arguments[facts.index(name)]
        return Blank(f"{self.path}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Blank:
        return Blank(f"{self.path}()", arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blank) and (self.path, self.arguments) == (other.path, other.arguments)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return self.path

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()  # a class that stands on a word of Numba's is a plain one


WATCHED = ("GGMLQ_COMPILE_HERE", "GGMLQ_GUARD_WAITS", "NUMBA_ENABLE_CUDASIM")


def _blank() -> bool:
    """Words can be blank beside CuPy or torch, unless kernels are simulated or watched, and so compiled here.

    Without numba-cuda kernels that come with the package run, and others say so when they are loaded.
    """
    if any(map(_is_set, WATCHED)):
        return False
    has_arrays = "torch" in sys.modules or missing.has("cupy")
    return not missing.has("numba_cuda") or (
        has_arrays and "numba.cuda" not in sys.modules and bool(sys.executable)
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


def _refuse(problem: str) -> NoReturn:
    raise MissingDependencyError(
        f"CUDA: numba-cuda {problem}; kernels that this process compiles are written in it; "
        f"{missing.install_compiler()}, or leave {' and '.join(WATCHED)} out of the environment"
    )


BLANK = _blank()

_words: Any = Blank("words")
if not BLANK:
    if not missing.has("numba_cuda"):
        _refuse("is not installed")
    try:
        _words = import_module(".numba_cuda", __package__)
    except (ImportError, AttributeError) as error:  # as where a package beside it is of another age
        _refuse(f"cannot be imported ({error})")

cuda: Any = Blank("cuda") if BLANK else _words.cuda
types: Any = Blank("types") if BLANK else _words.types
extending: Any = Blank("extending") if BLANK else _words.extending
ir: Any = Blank("ir") if BLANK else _words.ir  # what instructions are written with: llvmlite's names
float32: Any = types.float32
float64: Any = types.float64
int8: Any = types.int8
int16: Any = types.int16
int32: Any = types.int32
int64: Any = types.int64
uint8: Any = types.uint8
uint32: Any = types.uint32
uint64: Any = types.uint64
SIMULATED: bool = not BLANK and _words.SIMULATED


def axes_of(kind: Any) -> int | None:
    """The number of axes of an array parameter; None for all others."""
    if isinstance(kind, Blank):
        return kind.arguments[1] if kind.path == "types.Array()" else None
    return int(kind.ndim) if isinstance(kind, types.Array) else None


def several(kind: Any) -> tuple[Any, int] | None:
    """The type and the length of a parameter that is a tuple of words; None for all others."""
    if isinstance(kind, Blank):
        return kind.arguments if kind.path == "types.UniTuple()" else None
    return (kind.dtype, int(kind.count)) if isinstance(kind, types.UniTuple) else None


def elements_of(kind: Any) -> tuple[Any, ...]:
    """The types of the words of a parameter: those of a tuple, or itself."""
    if both := several(kind):
        return (both[0],) * both[1]
    if isinstance(kind, Blank):
        return tuple(kind.arguments[0]) if kind.path == "types.Tuple()" else (kind,)
    return tuple(kind.types) if isinstance(kind, types.Tuple) else (kind,)
