"""Hooks: how a lower room calls an upper one, which it must not import.

A lower room makes a hook and calls it. The package's front, which knows all rooms, says in one table which
function of which room serves each hook (ggmlq/__init__.py); that room is imported at the first call. It runs
before any other file of the package, whichever of them is imported first and in whichever process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SERVED: dict[str, str] = {}  # "room.file:function", or the name of a room alone, by what a hook is for


def served_by(places: Mapping[str, str]) -> None:
    """Say which function of an upper room serves each hook."""
    _SERVED.update(places)


class Hook:
    """A function of an upper room, by what it is for."""

    def __init__(self, purpose: str) -> None:
        self._module, _, self._function = _SERVED[purpose].partition(":")
        self._room: Any = None

    def room(self) -> Any:
        """The module that serves this hook, imported when it is first asked for."""
        if self._room is None:
            from importlib import import_module  # the front imports this file for every Tab of a shell

            self._room = import_module(f"{__package__.partition('.')[0]}.{self._module}")
        return self._room

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function that serves this hook."""
        return getattr(self.room(), self._function)(*arguments, **options)
