"""Metadata of a GGUF file: a mapping that decodes a value at its first use and remembers every GGUF type.

Python values get a type by a rule, or the one that ``Typed`` forces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..arrays.protocols import Listed, inner
from ..base.named import Named
from ..base.text import COMPARED, count, html_table, near, short
from ..errors import GGUFError, GGUFKeyError
from .node import Node, array_header, decode, encode, raw, read
from .source import Source
from .values import MAX_DEPTH, NUMBERS, Array, ValueType

# --- types for Python values: a rule chooses one, Typed forces another -----------------------

# The first type of FOR_INT that holds an int is its type; FOR_INTS is for all ints of a list.
FOR_INT = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
FOR_INTS = (ValueType.INT32, ValueType.INT64)


@dataclass(frozen=True)
class Typed:
    """A metadata value with the GGUF type that it is to have.

    For a sequence ``type`` is that of the elements, for nested sequences of the innermost ones.
    Bytes may be a ``string``, which is how text that is not UTF-8 is written.

    >>> from ggmlq.gguf import Typed
    >>> metadata = {"small": Typed(64, "uint8"), "scores": Typed([1, 0.5], "float64")}
    """

    value: Any
    type: str | int | ValueType


def resolve(value: object) -> Node:
    """The node of a Python value. Raises GGUFError with the reason and the way out, without the key."""
    if isinstance(value, Typed):
        kind = ValueType.parse(value.type)
        if kind is None or kind is ValueType.ARRAY:
            names = ", ".join(k.word for k in ValueType if k is not ValueType.ARRAY)
            _refuse(f"Typed(…, {value.type!r}): there is no such type of an element; use one of {names}")
        return _node(value.value, kind, 0)
    return _node(value, None, 0)


def _node(value: Any, forced: ValueType | None, depth: int) -> Node:
    if isinstance(value, Array) and forced is None:
        forced = value.type if value.type is not ValueType.ARRAY else None
    if isinstance(value, np.ndarray):
        return _array_type(value, forced, depth)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return _of_sequence(value, forced, depth)
    kind = _scalar_type(value) if forced is None else forced  # UINT8 is 0, so never `or`
    if kind is ValueType.STRING:
        return Node(kind, _text(value))
    return Node(kind, _number(value, kind))


def _scalar_type(value: object) -> ValueType:
    """The type of a scalar: the declared rule for Python's, their own type for NumPy's."""
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _of_dtype(value.dtype)
    if isinstance(value, int):
        return _smallest(FOR_INT, value, value)
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, bytes | bytearray | memoryview):
        _refuse(
            'bytes may be text or numbers; say which: Typed(data, "string") or Typed(list(data), "uint8")'
        )
    _refuse(
        f"{_shown(value)} is nothing that GGUF can hold; "
        "it holds bool, int, float, str and sequences of one of them"
    )


def _smallest(kinds: Sequence[ValueType], low: int, high: int) -> ValueType:
    for kind in kinds:
        limits = np.iinfo(NUMBERS[kind])
        if limits.min <= low and high <= limits.max:
            return kind
    names = ", ".join(kind.word for kind in kinds)
    worst = low if low < np.iinfo(np.int64).min else high
    _refuse(
        f"{_shown(worst)} fits none of {names}; write it as text or as a float, "
        'or a list that uint64 holds as Typed(list, "uint64")'
    )


def _of_dtype(dtype: np.dtype[Any]) -> ValueType:
    if dtype == np.float16:
        return ValueType.FLOAT32
    kind = ValueType.parse(dtype.name)
    if kind is None or (kind not in NUMBERS):
        _refuse(f"GGUF has no type for NumPy's {dtype}; convert it to float64, float32 or an integer type")
    return kind


def _array_type(value: NDArray[Any], forced: ValueType | None, depth: int) -> Node:
    """A NumPy array: its dtype is its type; more than one axis are arrays of arrays."""
    if isinstance(value, np.ma.MaskedArray):
        _refuse("it is a masked array, and a file has no masks; pass x.filled(0)")
    if value.ndim == 0:
        return _node(value[()], forced, depth)
    _check_depth(depth)
    if value.ndim > 1:
        return Node(ValueType.ARRAY, [_array_type(row, forced, depth + 1) for row in value], ValueType.ARRAY)
    if value.dtype.kind not in "biuf":
        if value.dtype.kind in "UT":
            return _of_sequence(value.tolist(), forced, depth)
        _refuse(
            f"a NumPy array of {value.dtype} is nothing that GGUF can hold; pass numbers or a list of str"
        )
    kind = _of_dtype(value.dtype) if forced is None else forced
    if kind is ValueType.STRING:
        _refuse("numbers were given for text; pass a list of str")
    return Node(ValueType.ARRAY, _numbers(value, kind), kind)


def _of_sequence(value: Sequence[Any], forced: ValueType | None, depth: int) -> Node:
    _check_depth(depth)
    items = list(value)
    nested = [_is_sequence(item) for item in items]
    if any(nested) or (isinstance(value, Array) and value.type is ValueType.ARRAY):
        if not all(nested):
            _refuse_mixed(items)
        return Node(ValueType.ARRAY, [_node(item, forced, depth + 1) for item in items], ValueType.ARRAY)
    kind = _common_type(items) if forced is None else forced
    if kind is ValueType.STRING:
        return Node(ValueType.ARRAY, [_text(item) for item in items], kind)
    return Node(ValueType.ARRAY, _numbers(items, kind), kind)


def _is_sequence(item: object) -> bool:
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray | memoryview)


def _common_type(items: list[Any]) -> ValueType:
    """One type for all elements; an empty list becomes INT32, the type of a list of ints."""
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return _smallest(FOR_INTS, min(items, default=0), max(items, default=0))
    kinds = {_scalar_type(item) for item in {type(item): item for item in items}.values()}
    if kinds == {ValueType.FLOAT32, ValueType.FLOAT64}:
        return ValueType.FLOAT64
    if len(kinds) > 1 and all(
        isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
    ):
        return _smallest(FOR_INTS, int(min(items)), int(max(items)))
    if len(kinds) > 1:
        _refuse_mixed(items)
    return kinds.pop()


def _refuse_mixed(items: list[Any]) -> NoReturn:
    kinds = sorted({type(item).__name__ for item in items})
    if any(_is_sequence(item) for item in items):
        _refuse(
            f"a list mixes {', '.join(kinds)}; the elements of a GGUF array are all arrays or none is; "
            "flatten the list, or put each single element into a list of its own"
        )
    _refuse(
        f"a list mixes {', '.join(kinds)}; a GGUF array holds one type; convert the elements to one type, "
        'or force one with Typed(list, "float32")'
    )


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        _refuse(f"lists lie more than {MAX_DEPTH} deep in each other; readers refuse that; flatten them")


def _text(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        _refuse(f"{_shown(value)} was given for text; pass a str")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        _refuse(
            f"the text {short(value)} has a lone surrogate at {error.start}, which UTF-8 cannot hold; "
            'replace it, or pass its bytes as Typed(data, "string")'
        )


def _number(value: Any, kind: ValueType) -> NDArray[Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        _refuse(f"bytes were given for a {kind.word}; pass a number, or list(data) for an array")
    return _numbers([value], kind).reshape(())


def _numbers(values: Sequence[Any] | NDArray[Any], kind: ValueType) -> NDArray[Any]:
    """Numbers in the type's dtype and this machine's byte order, nothing lost but float precision."""
    dtype = NUMBERS[kind].newbyteorder("=")
    same = isinstance(values, np.ndarray) and values.dtype.newbyteorder("=") == dtype
    if isinstance(values, np.ndarray) and same and kind is not ValueType.BOOL:
        return values.astype(dtype)
    items = values.tolist() if isinstance(values, np.ndarray) else values
    for item in _telling(items):
        _check_number(item, kind)
    with np.errstate(over="ignore"):
        values = np.array(items, dtype)
    if dtype.kind == "f":
        wide = np.array(items, np.float64)
        lost = np.isinf(values) & np.isfinite(wide)
        if lost.any():
            _refuse(
                f"the float {float(wide[lost][0])!r} is too large for {kind.word}; "
                'write it as Typed(value, "float64")'
            )
    return values


def _telling(items: Sequence[Any]) -> Iterable[Any]:
    """The elements that decide whether all fit: of a long list of one Python type the extremes."""
    types = set(map(type, items))
    if types == {int}:
        return min(items), max(items)
    return items[:1] if types in ({float}, {bool}, {str}) else items


def _check_number(item: Any, kind: ValueType) -> None:
    """Refuse a number that the type does not hold, before NumPy could wrap it or round it."""
    item = item.item() if isinstance(item, np.generic) else item
    truth = isinstance(item, bool)
    if kind is ValueType.BOOL:
        good = truth
    elif NUMBERS[kind].kind == "f":
        good = isinstance(item, float) or (isinstance(item, int) and not truth and abs(item) < 1 << 1023)
    else:
        limits = np.iinfo(NUMBERS[kind])
        good = isinstance(item, int) and not truth and limits.min <= item <= limits.max
    if not good:
        _refuse(f"{_shown(item)} does not fit {kind.word}; change the value or the type")


def _shown(item: object) -> str:
    if isinstance(item, int) and item.bit_length() > 128:
        return f"an integer of {item.bit_length()} bits"  # Python refuses to print very long ones
    return f"{type(item).__name__} {short(item)}"


def _refuse(reason: str) -> NoReturn:
    raise GGUFError(reason)


# --- the mapping -----------------------------------------------------------------------------

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


class Metadata(Listed, Named[Any]):
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

    def _named(self) -> Mapping[str, Entry]:
        return self._entries

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
