"""Attributes of a host's modules that are replaced while it is switched on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import ggmlq as gq

Change = tuple[Any, str, Any]  # a module or class of the host, its attribute, and the new value
ABSENT = object()


class Switch:
    """One host: which of its attributes are replaced, and whether they are now.

    ``changes()`` imports the host and lists them; ``tried`` are the versions of it that were tried.
    ``limits()`` says in words what the host does not do with them.
    """

    def __init__(
        self, host: str, package: str, tried: str, changes: Callable[[], Iterable[Change]],
        limits: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        self.host, self.package, self.tried = host, package, tried
        self._changes, self._limits = changes, limits
        self._before: list[Change] = []
        self._lock = threading.Lock()

    def enable(self) -> str:
        """Replace the attributes; a sentence that names them."""
        request = f"ggmlq.torch.hosts.{self.host}.enable()"
        with self._lock:
            if self._before:
                raise gq.errors.UnsupportedError(
                    f"{request}: it is enabled; once is enough, and disable() puts back what was there"
                )
            try:
                changes = list(self._changes())
                limits = "" if self._limits is None else f"; {self._limits()}"
            except ImportError as error:
                raise gq.errors.MissingDependencyError(
                    f"{request}: {self.package} cannot be imported ({error}); {self.tried} was tried"
                ) from error
            except AttributeError as error:
                raise gq.errors.UnsupportedError(self._another(request, error.name or f"{error}")) from error
            missing = [f"{_name(place)}.{name}" for place, name, _ in changes if not hasattr(place, name)]
            if missing:
                raise gq.errors.UnsupportedError(self._another(request, ", ".join(missing)))
            for place, name, value in changes:
                self._before.append((place, name, vars(place).get(name, ABSENT)))
                setattr(place, name, value)
        replaced = ", ".join(f"{_name(place)}.{name}" for place, name, _ in changes)
        return f"{self.host}: replaced {replaced}{limits}"

    def _another(self, request: str, lack: str) -> str:
        """The sentence about a version of the host that lacks what is replaced."""
        return (
            f"{request}: this version of {self.package} has no {lack}; its inside is another than that of "
            f"{self.tried}, which was tried; install that one"
        )

    def disable(self) -> str:
        """Put the host's own attributes back; a sentence that names them."""
        with self._lock:
            if not self._before:
                raise gq.errors.UnsupportedError(
                    f"ggmlq.torch.hosts.{self.host}.disable(): it is not enabled; call enable() first"
                )
            before, self._before = self._before, []
            for place, name, value in reversed(before):
                delattr(place, name) if value is ABSENT else setattr(place, name, value)
        return f"{self.host}: put back {', '.join(f'{_name(place)}.{name}' for place, name, _ in before)}"

    @property
    def enabled(self) -> bool:
        """True while the host's attributes are replaced."""
        return bool(self._before)


def _name(place: Any) -> str:
    return str(getattr(place, "__qualname__", getattr(place, "__name__", place)))
