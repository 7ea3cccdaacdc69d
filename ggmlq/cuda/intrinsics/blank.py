"""Words that stand for Numba's where nothing is compiled: importing Numba takes a second, blanks no time.

A module of kernels names types, decorates functions and builds closures when it is imported. With blanks
that costs nothing and means nothing: a blank remembers what was asked of it and answers with another one.
So whatever launches a kernel can be used as it is, and only its compiler needs the words themselves.
"""

from __future__ import annotations

from typing import Any

# What types are asked for while kernels are made: it is what they were made with.
FACTS = {"types.UniTuple()": ("dtype", "count"), "types.Array()": ("dtype", "ndim", "layout")}


class Blank:
    """A name, or what a call of it would give; equal where that reads the same."""

    def __init__(self, path: str, given: tuple[Any, ...] = ()) -> None:
        self.path, self.given = path, given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        facts = FACTS.get(self.path, ())
        if name in facts:
            return self.given[facts.index(name)]
        return Blank(f"{self.path}.{name}")

    def __call__(self, *given: Any, **options: Any) -> Blank:
        return Blank(f"{self.path}()", given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blank) and (self.path, self.given) == (other.path, other.given)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return self.path

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()  # a class that stands on a word of Numba's is a plain one
