"""Public members of a class, as ``dir()``, Tab in a notebook and the reference of the site show them.

A member is public if its name has no underscore, a docstring describes it, and no class marks it ``@inner``.
Inner members are for other rooms of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def inner(function: Function) -> Function:
    """Mark a method, or under ``@property`` the function of one, as a member for the package alone."""
    function.__dict__["inner"] = True
    return function


def public(kind: type) -> list[str]:
    """Names of the public members of a class, with inherited ones, without those of Python's own types."""
    return [name for name in dir(kind) if not name.startswith("_") and _is_public(kind, name)]


def _is_public(kind: type, name: str) -> bool:
    from inspect import getdoc  # where somebody asks

    bases = [base for base in kind.__mro__ if name in vars(base)]
    definitions = [vars(base)[name] for base in bases]
    if not bases or bases[0].__module__ == "builtins" or any(map(_is_inner, definitions)):
        return False
    is_value = not hasattr(definitions[0], "__get__")  # its docstring would be that of its type
    return not is_value and bool(getdoc(getattr(kind, name)))


def _is_inner(definition: Any) -> bool:
    function = getattr(definition, "fget", None) or getattr(definition, "__func__", definition)
    return bool(getattr(function, "__dict__", {}).get("inner"))


class Listed:
    """A class whose objects list their public members."""

    def __dir__(self) -> Iterable[str]:
        shown = {*public(type(self))}
        return [name for name in super().__dir__() if name.startswith("_") or name in shown]
