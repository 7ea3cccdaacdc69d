"""Metadata of a GGUF file: a mapping that decodes a value at its first use and remembers every GGUF type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..arrays.protocols import Listed, inner
from ..base.text import COMPARED, count, html_table, near, short
from ..errors import GGUFError, GGUFKeyError
from .node import Node, array_header, decode, encode, raw, read
from .source import Source
from .typed import resolve
from .valuetype import ValueType

LONGEST = 100  # characters of a value that a table shows
FORMS = {
    "tensors": "are a dict of names (str) and arrays",
    "metadata": "are a dict of keys (str) and values",
}


class Stored(NamedTuple):
    """A value that still lies in its file."""

    source: Source
    key: str
    type: ValueType
    start: int  # of the value, after its type
    end: int

    def node(self) -> Node:
        return read(self.source, self.type, self.start)[0]

    def equals(self, other: Stored) -> bool:
        """True where type and bytes are the same."""
        ours, theirs = (x.source.data[x.start : x.end] for x in (self, other))
        return self.type is other.type and np.array_equal(ours, theirs)

    def words(self) -> str:
        if self.type is not ValueType.ARRAY:
            return self.type.word
        return f"array of {array_header(self.source, self.start, 0)[0].word}"

    def length(self) -> int:
        return array_header(self.source, self.start, 0)[1] if self.type is ValueType.ARRAY else 0

    def decode(self) -> Any:
        try:
            return decode(self.node())
        except GGUFError as error:
            self.source.fail(self.start, f"the value of {self.key!r}: {error}")

    def encode(self, byteorder: str) -> Iterator[bytes | memoryview]:
        if byteorder == self.source.byteorder:  # nothing to look at: a vocabulary passes through
            return iter([memoryview(self.source.map)[self.start : self.end]])
        return encode(self.node(), byteorder)


class Settable(NamedTuple):
    """A value that someone set."""

    content: Node

    @property
    def type(self) -> ValueType:
        return self.content.type

    def node(self) -> Node:
        return self.content

    def words(self) -> str:
        return self.content.words

    def length(self) -> int:
        return len(self.content.data) if self.type is ValueType.ARRAY else 0

    def decode(self) -> Any:
        return decode(self.content)

    def encode(self, byteorder: str) -> Iterator[bytes]:
        return encode(self.content, byteorder)


Entry = Stored | Settable


class Metadata(Listed, Mapping[str, Any]):
    """Keys and values of a GGUF file, read-only.

    ``metadata | {"general.name": "mine"}`` and ``metadata.without("general.url")`` give edited
    copies that still know the type of every value.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)
        self._values: dict[str, Any] = {}

    @classmethod
    def of(cls, values: Any) -> Metadata:
        """Metadata from a mapping, or from pairs, of Python values; itself if it is one already."""
        if isinstance(values, Metadata):
            return values
        entries: dict[str, Entry] = {}
        for key, value in _pairs("metadata", values):
            if key in entries:
                raise GGUFError(f"the key {key!r} is given twice; a file holds each key once; drop one")
            try:
                entries[key] = Settable(resolve(value))
            except GGUFError as error:
                raise GGUFError(f"the value of {key!r}: {error}") from None
        return cls(entries)

    @property
    @inner
    def entries(self) -> Mapping[str, Entry]:
        """The entries for the writer: values as they lie in the file, or as a user set them."""
        return self._entries

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:  # two threads at worst decode the same value twice
            self._values[key] = self._entry(key).decode()
        return self._values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or the default for a key that is not there."""
        return self[key] if key in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def type(self, key: str) -> str:
        """The GGUF type of a value: ``"uint32"``, ``"string"``, ``"array of string"``."""
        return self._entry(key).words()

    @inner
    def length(self, key: str) -> int:
        """The number of an array's elements, none of which is decoded; 0 for other values."""
        return self._entry(key).length()

    def raw(self, key: str) -> Any:
        """The bytes of a value: text undecoded, numbers little-endian, arrays of text as a sequence."""
        return raw(self._entry(key).node())

    def without(self, *keys: str) -> Metadata:
        """A copy that lacks some keys."""
        for key in keys:
            self._entry(key)
        return Metadata({key: entry for key, entry in self._entries.items() if key not in keys})

    def __or__(self, other: Mapping[str, Any]) -> Metadata:
        """A copy with values added or replaced; they get the types that ``gq.save`` gives them."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return Metadata({**self._entries, **Metadata.of(other).entries})

    def __ror__(self, other: Mapping[str, Any]) -> Metadata:
        if not isinstance(other, Mapping):
            return NotImplemented
        return Metadata({**Metadata.of(other).entries, **self._entries})

    def __reduce__(self) -> tuple[Any, ...]:  # types stay; what lay in the file is copied
        return Metadata, ({key: Settable(entry.node()) for key, entry in self._entries.items()},)

    def _repr_html_(self) -> str:
        """For a notebook: all keys with their types, and the beginning of each value."""
        return html_table(("key", "type", "value"), self.rows(), f"{count(len(self), 'key')} of metadata")

    @inner
    def rows(self) -> list[list[object]]:
        """Key, type and the beginning of the value, for people."""
        return [[key, self.type(key), self._words(key)] for key in self]

    def _words(self, key: str) -> str:
        try:
            value = self[key]
        except GGUFError as error:
            return str(error)
        if self.type(key) == "float32":  # as it was written: 1e-06, not the double beside it
            return str(np.float32(value))
        return short(value, LONGEST)

    def __repr__(self) -> str:
        return f"<GGUF metadata, {len(self)} keys: {', '.join(self)}>"

    def _entry(self, key: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            missing(f"metadata[{short(key)}]", key, self._entries)
        return entry


def missing(
    request: str,
    key: object,
    known: Iterable[str],
    way: str = "list(...) gives the names",
    kind: type[Exception] = GGUFKeyError,
) -> NoReturn:
    """Raise the KeyError for an unknown key, with similar names."""
    names = list(known)
    count_of = count(len(names), "name")
    raise kind(f"{request}: the file has {count_of}, not this one; {similar(key, names, way)}")


def similar(key: object, known: Iterable[str], way: str = "list(...) gives the names") -> str:
    """The end of an error about an unknown key: "did you mean" with similar names, or the way out."""
    names = list(known)
    candidates = near(str(key), names) if len(names) <= COMPARED else []
    if not candidates:
        return way
    many = sum(str(key).lower() in name.lower() for name in names)
    return f"did you mean {', '.join(map(repr, candidates))}?" + (
        f" {many} hold it" if many > len(candidates) else ""
    )


def _pairs(what: str, values: Any) -> Iterable[tuple[str, Any]]:
    try:
        pairs = list(values.items() if isinstance(values, Mapping) else values)
    except TypeError:
        raise GGUFError(
            f"got {type(values).__name__} for the {what}, which {FORMS[what]}, or pairs of them; "
            "pass such a dict"
        ) from None
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise GGUFError(
                f"{short(pair)} is no entry of the {what}, which {FORMS[what]}, or pairs of them; "
                "pass such a dict"
            )
    return pairs
