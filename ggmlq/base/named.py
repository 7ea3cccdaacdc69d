"""Parts of mappings from names: iteration, look-ups that read nothing, completion, names as attributes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

Held_co = TypeVar("Held_co", covariant=True)


class Named(Mapping[str, Held_co]):
    """A mapping that knows its names without its items, which may take long to read."""

    @abstractmethod
    def _named(self) -> Collection[str]:
        """All names, in order; ``in`` is quick."""

    def get(self, name: str, default: Any = None) -> Any:
        """The item of a name, or the default for a name that is not there."""
        return self[name] if name in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __contains__(self, name: object) -> bool:
        return name in self._named()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


class Catalogue(Named[Held_co]):
    """A mapping whose items also have other keys, and are attributes: ``gq.formats.q4_K``."""

    _canonical: Mapping[str, Held_co]  # by the names that it lists
    _no_attribute: ClassVar[type[AttributeError]]

    def _named(self) -> Collection[str]:
        return self._canonical

    def __contains__(self, key: object) -> bool:
        return Mapping.__contains__(self, key)

    def __getattr__(self, name: str) -> Held_co:
        """The item of a name, in any spelling that indexing takes."""
        if name.startswith("_"):  # what Python asks any object for
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise self._no_attribute(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]
