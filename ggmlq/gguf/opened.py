"""What open models of any kind have in common: a mapping that can be closed."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self, TypeVar

Held_co = TypeVar("Held_co", covariant=True)


class State(Protocol):
    """What is held until it is closed."""

    @property
    def places(self) -> Mapping[str, Any]:
        """Where each tensor lies."""


class Opened(Mapping[str, Held_co]):
    """An open model: names to arrays. Closing it lets go of its files; arrays taken from it stay good."""

    paths: tuple[str, ...]
    _state: Any

    @property
    def path(self) -> str:
        """The file, or the first one."""
        return self.paths[0]

    @abstractmethod
    def _opened(self) -> State:
        """What is held; an error once it is closed."""

    def get(self, name: str, default: Any = None) -> Any:
        """A tensor, or the default for a name that is not there."""
        return self[name] if name in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened().places)

    def __len__(self) -> int:
        return len(self._opened().places)

    def __contains__(self, name: object) -> bool:
        return name in self._opened().places

    def _to_several(
        self, chosen: Mapping[str, Any], devices: Any, axis: Any, progress: bool | None
    ) -> Mapping[str, Any]:
        """Tensors in parts on several devices: by name, since that room stands on this one."""
        loading: Any = importlib.import_module(f"{__package__.partition('.')[0]}.parallel.loading")
        found = loading.to_several(f"{self!r}.to({devices!r})", chosen, devices, axis, progress)
        return MappingProxyType(found)

    # A model equals itself only: comparing the bytes of two is nothing to do in passing.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; what was taken from them stays good."""
        self._state = None
