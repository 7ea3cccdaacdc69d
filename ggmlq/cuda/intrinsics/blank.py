"""Stand-ins for Numba's words where nothing is compiled: importing Numba takes a second, blanks no time.

A module of kernels names types, decorates functions and builds closures when it is imported. Blanks answer
all of that with further blanks, which remember their names and arguments, and do nothing. So code that
launches a kernel works as it is, and only the compiler needs the words themselves.
"""

from __future__ import annotations

from typing import Any

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
