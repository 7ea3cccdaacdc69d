"""GGUFReader: the metadata and tensors of one file, with gguf-py's attributes.

gguf-py makes an array for each element of every field when it opens a file, which takes seconds for a
vocabulary. Here fields are made when they are looked at, and elements of a field when they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ...gguf import chain, header
from ...gguf.metadata import Stored
from ...gguf.node import array_header
from ...gguf.source import Source, checked_path
from ...gguf.tensors import TensorInfo
from ...gguf.valuetype import NUMBERS, ValueType, order_sign
from .constants import GGMLQuantizationType, GGUFEndian, GGUFValueType

Array = NDArray[Any]
PLAIN = {"f16", "f32", "f64", "i8", "i16", "i32", "i64"}  # the types whose data is no bytes


class ReaderField(NamedTuple):
    """One entry of a header: its parts as arrays over the file, and which of them are its value."""

    offset: int
    name: str
    parts: Sequence[Array] = ()
    data: Sequence[int] = (-1,)
    types: Sequence[Any] = ()

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """The value as Python objects: a str, a number, or a list of them."""
        if not self.types:
            return None
        read = _text if self.types[-1] == GGUFValueType.STRING else _number
        if self.types[0] != GGUFValueType.ARRAY:
            return read(self.parts[-1])
        picked = self.data[index_or_slice]
        return read(self.parts[picked]) if isinstance(picked, int) else [read(self.parts[i]) for i in picked]


def _text(part: Array) -> str:
    return part.tobytes().decode()


def _number(part: Array) -> Any:
    return part.tolist()[0]


class ReaderTensor(NamedTuple):
    """One tensor: shape as ggml has it, data as NumPy has it, blocks as uint8 [..., bytes per row]."""

    name: str
    tensor_type: Any
    shape: Array
    n_elements: int
    n_bytes: int
    data_offset: int
    data: Array
    field: ReaderField


class GGUFReader:
    """The fields and tensors of one GGUF file; of a split model those of this part.

    Parameters
    ----------
    path : str or os.PathLike
        The file, which is memory-mapped.
    mode : str
        ``"r"``: arrays are read-only. To change metadata of a file use ``ggmlq metadata``.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
    >>> _ = gq.save(path, {"w": np.ones((2, 3), np.float32)}, {"general.architecture": "llama"})
    >>> reader = GGUFReader(path)
    >>> reader.get_field("general.architecture").contents(), reader.tensors[0].shape.tolist()
    ('llama', [3, 2])
    """

    def __init__(self, path: str | os.PathLike[str], mode: str = "r") -> None:
        request = f"GGUFReader({str(path)!r})"
        source = Source(checked_path(request, path, "pass a str or an os.PathLike"))
        if mode != "r":
            raise ValueError(
                f"{request}: mode={mode!r}; files are read here, mode is 'r'; `ggmlq metadata` changes "
                "values in place, np.array(tensor.data) is a copy that may be written to"
            )
        self._source, self._header = source, header.parse(source)
        self.data = source.data
        self.alignment = self._header.alignment
        self.data_offset = self._header.data
        self.byte_order = "I" if source.byteorder == "little" else "S"
        self.endianess = GGUFEndian.LITTLE if source.byteorder == "little" else GGUFEndian.BIG

    @cached_property
    def fields(self) -> Mapping[str, ReaderField]:
        """The fields by name, in the order of the file, behind three facts of its first bytes."""
        return _Fields(self._source, self._header.metadata)

    @cached_property
    def tensors(self) -> list[ReaderTensor]:
        """The tensors in the order of the file; nothing is decoded."""
        return [_tensor(self._source, info, self.data_offset) for info in self._header.tensors.values()]

    def get_field(self, key: str) -> ReaderField | None:
        """The field of that name, or None."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """The tensor of that number."""
        return self.tensors[idx]


class _Fields(Mapping[str, ReaderField]):
    """Fields that are made when they are looked up."""

    def __init__(self, source: Source, metadata: Mapping[str, Stored]) -> None:
        self._source, self._metadata = source, metadata
        numbers = {"GGUF.version": (4, "u4"), "GGUF.tensor_count": (8, "u8"), "GGUF.kv_count": (16, "u8")}
        self._fields = {name: self._first(name, *place) for name, place in numbers.items()}
        self._names = [*self._fields, *metadata]

    def _first(self, name: str, at: int, dtype: str) -> ReaderField:
        kind = GGUFValueType.UINT32 if dtype == "u4" else GGUFValueType.UINT64
        return ReaderField(at, name, [_read(self._source, at, dtype)], [0], [kind])

    def __getitem__(self, key: str) -> ReaderField:
        field = self._fields.get(key)
        if field is None:
            field = self._fields[key] = _field(self._source, self._metadata[key])
        return field

    def __contains__(self, key: object) -> bool:
        return key in self._fields or key in self._metadata

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _read(source: Source, at: int, dtype: Any, count: int = 1) -> Array:
    kind = np.dtype(dtype).newbyteorder(order_sign(source.byteorder))
    return source.data[at : at + count * kind.itemsize].view(kind)


def _field(source: Source, stored: Stored) -> ReaderField:
    """The field of a key: length and bytes of its name, its type, and its value."""
    size = len(stored.key.encode())
    start = stored.start - 4 - size - 8
    head = [_read(source, start, "u8"), source.data[start + 8 : start + 8 + size]]
    head.append(_read(source, stored.start - 4, "u4"))
    at, kind = stored.start, stored.type
    parts: Sequence[Array]
    if kind is ValueType.STRING:
        n = source.u64(at, "the length of a string")
        parts = [*head, _read(source, at, "u8"), source.data[at + 8 : at + 8 + n]]
        return ReaderField(start, stored.key, parts, [4], [GGUFValueType.STRING])
    if kind is not ValueType.ARRAY:
        parts = [*head, _read(source, at, _dtype(kind))]
        return ReaderField(start, stored.key, parts, [3], [GGUFValueType(int(kind))])
    of, count = array_header(source, at, 0)
    head += [_read(source, at, "u4"), _read(source, at + 4, "u8")]
    types = [GGUFValueType.ARRAY, GGUFValueType(int(of))] if count else [GGUFValueType.ARRAY]
    if of is ValueType.STRING:
        parts = _Strings(head, source, at + 12, count)
        return ReaderField(start, stored.key, parts, range(6, 6 + 2 * count, 2), types)
    if of is ValueType.ARRAY:
        source.fail(
            at, f"{stored.key!r} is an array of arrays, which gguf-py's fields flatten; open it with gq.open"
        )
    parts = _Numbers(head, _read(source, at + 12, _dtype(of), count))
    return ReaderField(start, stored.key, parts, range(5, 5 + count), types)


def _dtype(kind: ValueType) -> Any:
    return np.dtype(np.bool_) if kind is ValueType.BOOL else NUMBERS[kind]


class _Parts(Sequence[Array]):
    """The parts of an array: those before its elements, and the elements when they are looked at."""

    def __init__(self, head: list[Array]) -> None:
        self._head = head

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"part {index} of {len(self)}")
        return self._head[at] if at < len(self._head) else self._element(at - len(self._head))

    def _element(self, at: int) -> Array:
        raise NotImplementedError


class _Numbers(_Parts):
    """An array of numbers: each element is a part."""

    def __init__(self, head: list[Array], numbers: Array) -> None:
        super().__init__(head)
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._head) + len(self._numbers)

    def _element(self, at: int) -> Array:
        return self._numbers[at : at + 1]


class _Strings(_Parts):
    """An array of strings: of each element the length and the bytes are parts."""

    def __init__(self, head: list[Array], source: Source, start: int, count: int) -> None:
        super().__init__(head)
        self._source, self._start, self._count = source, start, count

    @cached_property
    def _starts(self) -> list[int]:
        """Starts of the strings, where their lengths are, and the end of the last one."""
        starts: list[int] = []
        end = self._start
        for run in chain.runs(self._source, self._start, self._count):
            starts += run.starts.tolist()
            end = run.end
        return [*starts, end]

    def __len__(self) -> int:
        return len(self._head) + 2 * self._count

    def _element(self, at: int) -> Array:
        start = self._starts[at // 2]
        if at % 2 == 0:
            return _read(self._source, start, "u8")
        return self._source.data[start + 8 : self._starts[at // 2 + 1]]


def _tensor(source: Source, info: TensorInfo, start: int) -> ReaderTensor:
    """A tensor as gguf-py describes it."""
    fmt, size = info.format, len(info.name.encode())
    at = info.entry
    dims = at + 12 + size
    shape = _read(source, dims, "u8", len(info.shape))
    after = dims + 8 * len(info.shape)
    parts = [
        _read(source, at, "u8"),
        source.data[at + 8 : at + 8 + size],
        _read(source, dims - 4, "u4"),
        shape,
    ]
    parts += [_read(source, after, "u4"), _read(source, after + 4, "u8")]
    place = start + info.offset
    raw = source.stored(info.name, place if info.nbytes else 0, info.nbytes)
    if fmt.name in PLAIN:
        data = raw.view(fmt.dtype.newbyteorder(order_sign(source.byteorder))).reshape(info.shape)
    else:
        data = raw.reshape(*info.shape[:-1], fmt.row_bytes(info.shape[-1] if info.shape else 1))
    return ReaderTensor(
        info.name, GGMLQuantizationType(fmt.id), shape, prod(info.shape), info.nbytes, place, data,
        ReaderField(at, info.name, parts, [1, 3, 4, 5]),
    )  # fmt: skip
