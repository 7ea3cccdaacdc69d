"""Selections of a file's tensors: all, those whose names fit a pattern, those that a function accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from ..base.text import short
from ..errors import DTypeError, GGUFKeyError

NAMED = 5  # names that an error shows

Filter = str | Callable[[str], object] | None


def fitting(names: Iterable[str], pattern: str) -> list[str]:
    """The names that fit a pattern as a whole."""
    return [name for name in names if fnmatchcase(name, pattern)]


def select(request: str, names: Iterable[str], filter: Filter) -> list[str]:
    """The names that a filter takes, in their order; an error if it takes none of some names."""
    listed = list(names)
    if filter is None:
        return listed
    if not (isinstance(filter, str) or callable(filter)):
        raise DTypeError(
            f'{request}: filter={short(filter)}; a filter is a pattern like "blk.0.*", a function of a name, '
            "or None for all; for the names in a list pass filter=names.__contains__"
        )
    chosen = fitting(listed, filter) if isinstance(filter, str) else [name for name in listed if filter(name)]
    if listed and not chosen:
        shown = ", ".join(map(repr, listed[:NAMED])) + (", …" if len(listed) > NAMED else "")
        raise GGUFKeyError(
            f"{request}: filter={short(filter)} takes none of {len(listed)} tensors, {shown}; it must fit "
            "whole names, and list(f) gives them all"
        )
    return chosen
