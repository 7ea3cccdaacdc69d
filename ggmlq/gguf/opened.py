"""The common part of open models of any kind: a mapping that can be closed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from ..arrays.protocols import Listed, public
from ..base.folding import folded
from ..base.hooks import Hook
from ..base.named import Held_co, Named
from ..base.text import count, html_table, meant, short, size
from ..errors import ArrayAttributeError, DTypeError, GGUFKeyError
from .metadata import missing

# --- selections: all tensors, those that fit a pattern, those that a function accepts --------

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


# --- the mapping -----------------------------------------------------------------------------

SHOWN = 5  # names in the repr of a selection
NAMED_ELSEWHERE = ("tensors", "arrays", "weights", "names")  # in other libraries
LINES = 60  # of tensors that a notebook shows

_equivalent_names = Hook("names of a tensor in other files")
_to_several = Hook("tensors in parts on several devices")


class State(Protocol):
    """The contents of a model until it is closed."""

    @property
    def places(self) -> Mapping[str, Any]:
        """The place of each tensor."""


class Opened(Listed, Named[Held_co]):
    """An open model: names to arrays. Closing it lets go of its files; arrays taken from it stay good."""

    _paths: tuple[str, ...]
    _state: Any

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order of the parts."""
        return self._paths

    @property
    def path(self) -> str:
        """The file, or the first one."""
        return self.paths[0]

    @abstractmethod
    def _opened(self) -> State:
        """The contents; an error once the model is closed."""

    def _named(self) -> Mapping[str, Any]:
        return self._opened().places

    def select(self, filter: Filter) -> Selection[Held_co]:
        """The tensors whose names fit, as a read-only mapping; a tensor is read at its first use.

        Parameters
        ----------
        filter : str or callable
            A pattern for whole names, with ``*``, ``?`` and ``[…]`` as in file names, or a function of a
            name. One that takes no tensor is a GGUFKeyError.

        >>> import os, tempfile, numpy as np, ggmlq as gq
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
        >>> _ = gq.save(path, {"norm": np.ones(4, np.float32), "blk.0.up": np.eye(4, dtype=np.float32)})
        >>> gq.open(path).select("blk.*")
        <1 of 2 tensors: 'blk.0.up'>
        """
        return Selection(self, select(f"{self!r}.select({short(filter)})", self, filter))

    def _missing(self, name: object, kind: type[Exception]) -> NoReturn:
        """Raise the error for a name that is not there, with similar names."""
        request, names = f"{self!r}[{short(name)}]", list(self._opened().places)
        if isinstance(name, str) and (fits := fitting(names, name)):
            raise kind(
                f"{request}: a name is that of one tensor; f.select({short(name)}) gives the {len(fits)} "
                "whose names fit"
            )
        if here := [other for other in _equivalent_names(name) if other in names]:
            raise kind(f"{request}: this file has that tensor under another name; take f[{here[0]!r}]")
        missing(request, name, names, kind=kind)

    @abstractmethod
    def _tensors(self) -> list[dict[str, Any]]:
        """Name, type, shape and bytes of each tensor that is there."""

    @abstractmethod
    def _metadata_html(self) -> str:
        """The table of the metadata for a notebook."""

    def _repr_html_(self) -> str:
        """For a notebook: the tensors, equal layers in one line, and the metadata."""
        if self._state is None:
            return html_table((), (), repr(self))
        return _table(self._tensors(), repr(self)) + self._metadata_html()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self) if self._state is not None else []

    def _to_several(
        self, chosen: Mapping[str, Any], devices: Any, axis: Any, progress: bool | None
    ) -> Mapping[str, Any]:
        """Tensors in parts on several devices."""
        arrays = _to_several(f"{self!r}.to({devices!r})", chosen, devices, axis, progress)
        return MappingProxyType(arrays)

    if not TYPE_CHECKING:  # or every name would be an attribute to type checkers

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # what Python and libraries ask any object for
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            names = public(type(self))
            way = "a tensor is f[name], their names are list(f)"
            if name not in NAMED_ELSEWHERE:
                way = meant(name, names, f"{way}; it has {', '.join(names)}")
            raise ArrayAttributeError(f"f.{name} of {self!r}: there is no such attribute; {way}")

    # A model equals itself only: comparing the bytes of two models takes too long for ``==``.
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
        """Close the files; arrays that were taken from them stay good."""
        self._state = None


def _table(tensors: list[dict[str, Any]], caption: str) -> str:
    """Tensors for a notebook, equal layers in one line."""
    rows: list[list[object]] = [
        [
            fact["name"],
            fact["type"],
            " × ".join(map(str, fact["shape"])),
            fact["tensors"],
            size(fact["bytes"]),
        ]
        for fact in folded(tensors)
    ]
    more = len(rows) - LINES
    if more > 1:
        rows[LINES:] = [[f"… and {more} more", "", "", "", ""]]
    return html_table(("tensor", "type", "shape", "tensors", "size"), rows, caption)


class Selection(Listed, Named[Held_co]):
    """Some tensors of an open model, by name; :meth:`Opened.select` makes it."""

    def __init__(self, file: Opened[Held_co], names: list[str]) -> None:
        self._file, self._names = file, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Held_co:
        if name not in self._names:
            missing(f"{self!r}[{short(name)}]", name, self._names)
        return self._file[name]

    def _named(self) -> Mapping[str, None]:
        return self._names

    def _repr_html_(self) -> str:
        """For a notebook: these tensors, equal layers in one line."""
        tensors = [fact for fact in self._file._tensors() if fact["name"] in self._names]
        return _table(tensors, f"{len(self)} of {count(len(self._file), 'tensor')} of {self._file.path!r}")

    def __repr__(self) -> str:
        names = ", ".join(map(repr, list(self)[:SHOWN])) + (", …" if len(self) > SHOWN else "")
        return f"<{len(self)} of {count(len(self._file), 'tensor')}: {names}>"
