"""Reader of the header of a safetensors file: a length, and a JSON object with the place of each tensor.

    length u64, little-endian · JSON: name -> dtype, shape, data_offsets; "__metadata__" -> texts · the data

Offsets count from the end of the JSON. Tensors lie without gaps from the first byte of the data to the last.
Everything is checked before a tensor is looked at; a file that ends too early, and is right otherwise, is
taken for a download that was cut off, and opens with what is there.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from ..base.text import short
from ..codes import CODES, Code
from ..errors import SafetensorsError, SafetensorsNotFoundError, SafetensorsOSError
from ..formats import FORMATS, Format
from ..gguf import source as gguf_source
from ..gguf.header import MOST_BYTES, explanation, safetensors_explanation
from ..gguf.source import KEYS, TENSORS, Kind, limit_of

# --- JSON that may be hostile: bounded before parsing, every failure an error in words -------
# A parser makes an object of some hundred bytes out of two characters, so the brackets and commas decide
# about memory. Both are counted first, which takes a millisecond a megabyte.

MOST_JSON = 1 << 26  # of a text; the largest tokenizers take 33 MB
MOST_NESTED = 1 << 21  # brackets: a merge of a tokenizer has one; the largest have half a million merges
MOST_ITEMS = 1 << 22  # commas; the largest tokenizers have 1.3 million


class _Refused(ValueError):
    """A reason in words."""


def parsed(raw: bytes, most_nested: int = MOST_NESTED, most_items: int = MOST_ITEMS) -> Any:
    """The value of a JSON text; ValueError with the reason for anything that is not strict JSON."""
    for what, most, count in (
        ("brackets", most_nested, raw.count(b"[") + raw.count(b"{")),
        ("commas", most_items, raw.count(b",")),
    ):
        if count > most:
            raise _Refused(
                f"it has {count} {what}, {most} are read; it is damaged or made to fill the memory"
            )
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise _Refused(f"it is not UTF-8 at its byte {error.start} ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise _Refused(f"it is no JSON: {error.msg} at its character {error.pos}") from None
    except RecursionError:
        raise _Refused("it is nested too deep") from None
    except _Refused:
        raise
    except ValueError:  # of numbers with thousands of digits
        raise _Refused("it has a number of thousands of digits") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen_names: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen_names or seen_names.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {short(twice)} is there twice; keys must differ")
    return table


def _constant(word: str) -> NoReturn:
    raise _Refused(f"it has {word}, which JSON does not know")


def load(path: str, most: int = MOST_JSON) -> Any:
    """The value of a JSON file; SafetensorsError if it is no JSON."""
    raw = read(path, most)
    try:
        return parsed(raw)
    except ValueError as error:
        raise SafetensorsError(f"{path}: {error}; fetch the file again") from None


def read(path: str, most: int = MOST_JSON) -> bytes:
    """The bytes of a small regular file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise SafetensorsOSError(f"{path}: is not a regular file, and one is needed; check the path")
        if status.st_size > most:
            raise SafetensorsError(
                f"{path}: has {status.st_size} bytes, {most} are read of such a file; it is damaged, or not "
                "what its name says"
            )
        with open(path, "rb") as file:
            return file.read(most)
    except FileNotFoundError as error:
        raise SafetensorsNotFoundError(f"{path}: there is no such file; check the path", error) from error
    except SafetensorsOSError:
        raise
    except OSError as error:
        raise SafetensorsOSError(
            f"{path}: cannot be read: {error.strerror or error}; check its permissions", error
        ) from error


def load_object(path: str, most: int = MOST_JSON) -> dict[str, Any]:
    """The value of a JSON file that must hold an object."""
    value = load(path, most)
    if not isinstance(value, dict):
        raise SafetensorsError(
            f"{path}: it holds {short(value, 40)}; such a file holds an object, {{…}}; fetch it again"
        )
    return value


# --- element types, and the kind of array that each becomes ----------------------------------
# Types that ggml has become QuantArrays, 8-bit floats the codes of ScaledArrays, and types that only NumPy
# has NumPy arrays. Of all other types the table has the size, so that files with such tensors open and
# their other tensors can be read.


class ElementType(NamedTuple):
    """A type: its name in the file, its bits, and what reads it."""

    name: str
    bits: int
    format: Format | None = None
    code: Code | None = None
    dtype: np.dtype[Any] | None = None  # what NumPy sees of it


def _of_format(name: str) -> ElementType:
    fmt = FORMATS[name]
    return ElementType(name, 8 * fmt.dtype.itemsize, format=fmt, dtype=fmt.dtype)


def _of_numpy(name: str, dtype: str) -> ElementType:
    numpy = np.dtype(dtype)
    return ElementType(name, 8 * numpy.itemsize, dtype=numpy)


TYPES = {
    kind.name: kind
    for kind in (
        *map(_of_format, ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")),
        ElementType("F8_E4M3", 8, code=CODES["e4m3"], dtype=np.dtype("u1")),
        ElementType("F8_E5M2", 8, code=CODES["e5m2"], dtype=np.dtype("u1")),
        ElementType("F8_E8M0", 8, dtype=np.dtype("u1")),  # powers of two: scales
        *(_of_numpy(n, d) for n, d in (("U8", "u1"), ("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8"))),
        *(_of_numpy(n, d) for n, d in (("BOOL", "?"), ("C64", "<c8"))),
        *(ElementType(name, 8) for name in ("F8_E4M3FNUZ", "F8_E5M2FNUZ")),
        *(ElementType(name, bits) for name, bits in (("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6))),
    )
}  # fmt: skip

BY_DTYPE = {kind.dtype: kind.name for kind in TYPES.values() if kind.dtype is not None and kind.code is None}
BY_DTYPE[np.dtype("u1")] = "U8"  # not F8_E8M0, which has its bits
BY_DTYPE[np.dtype("<u2")] = "U16"  # not BF16
BY_FORMAT = {kind.format.name: kind.name for kind in TYPES.values() if kind.format is not None}
BY_CODE = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "int8": "I8", "int8_full": "I8", "uint8": "U8"}
BY_CODE |= {"int16": "I16", "uint16": "U16"}


# --- the header ------------------------------------------------------------------------------

METADATA = "__metadata__"
FIELDS = {"dtype", "shape", "data_offsets"}
MOST_HEADER = 100_000_000  # bytes of JSON: what the format allows
MOST_AXES = 32
KIND = Kind(
    "safetensors", "safetensors file", SafetensorsError, SafetensorsOSError, SafetensorsNotFoundError, 10
)


class Source(gguf_source.Source):
    """The checked bytes of a safetensors file."""

    kind: ClassVar[Kind] = KIND


class Entry(NamedTuple):
    """One tensor: its type and shape, and the bytes of the data that it has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.begin

    @property
    def type(self) -> ElementType:
        """The type of an element."""
        return TYPES[self.dtype]


class Header(NamedTuple):
    """The parsed header of a safetensors file: all facts that are known before a tensor is read."""

    tensors: Mapping[str, Entry]  # in the order of the header
    metadata: Mapping[str, str]
    data: int  # where offsets count from
    absent: frozenset[str]  # tensors that the file ends before


def parse(source: Source) -> Header:
    """Read and check; SafetensorsError with offset and reason where a rule is broken."""
    if source.map[:4] == b"GGUF":
        source.fail(0, "this is a GGUF file; open it with gq.open or gq.gguf.open")
    reason = safetensors_explanation(source.map)
    if reason:
        source.fail(0, reason)
    length = source.u64(0, "the length of the header")
    if source.map[8:9] not in (b"{", b""):
        source.fail(0, explanation(source.map, "safetensors"))
    if length > MOST_HEADER:
        source.fail(
            0, f"the header claims {length} bytes; the format allows {MOST_HEADER}; the file is damaged"
        )
    source.need(8, length, "the header")
    table = _parsed(source, length)
    metadata = _metadata(source, table.pop(METADATA, {}))
    source.count(8, TENSORS, len(table))
    entries = {name: _entry(source, name, fields) for name, fields in table.items()}
    return Header(entries, metadata, 8 + length, _check_places(source, entries, 8 + length))


def _parsed(source: Source, length: int) -> dict[str, Any]:
    tensors, keys = limit_of(TENSORS), limit_of(KEYS)
    try:  # an entry has three brackets and, of a matrix, five commas
        table = parsed(source.map[8 : 8 + length], 4 * tensors, 8 * tensors + keys)
    except ValueError as error:
        source.fail(8, f"the header: {error}; the file is damaged")
    if not isinstance(table, dict):
        source.fail(8, "the header is no JSON object; the file is damaged")
    return table


def _metadata(source: Source, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        source.fail(8, f"{METADATA} is {short(metadata)}; it maps texts to texts; the file is damaged")
    source.count(8, KEYS, len(metadata))
    return metadata


def _entry(source: Source, name: str, fields: Any) -> Entry:
    where = f"tensor {short(name, 200)}"
    try:
        name.encode()
    except UnicodeEncodeError:
        source.fail(8, f"{where}: its name has a lone surrogate, which is no text; the file is damaged")
    if not isinstance(fields, dict) or set(fields) != FIELDS:
        source.fail(
            8, f"{where} is {short(fields)}; it needs {', '.join(sorted(FIELDS))}; the file is damaged"
        )
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    kind = TYPES.get(dtype) if isinstance(dtype, str) else None
    if kind is None:
        source.fail(
            8,
            f"{where} has dtype {short(dtype)}; ggmlq knows {', '.join(TYPES)}; the file is newer or damaged",
        )
    if not _lengths(shape) or len(shape) > MOST_AXES:
        source.fail(
            8, f"{where} has shape {short(shape)}; it is up to {MOST_AXES} lengths; the file is damaged"
        )
    if not _lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1] or offsets[1] > MOST_BYTES:
        source.fail(
            8, f"{where} has data_offsets {short(offsets)}; they are [begin, end]; the file is damaged"
        )
    if prod(max(n, 1) for n in shape) * 8 > MOST_BYTES:
        source.fail(8, f"{where} has shape {shape}, more than 64 bits can count; the file is damaged")
    bits = prod(shape) * kind.bits
    if bits != 8 * (offsets[1] - offsets[0]):
        source.fail(
            8,
            f"{where}: {dtype} of shape {shape} takes {bits / 8:g} bytes, data_offsets {offsets} have "
            f"{offsets[1] - offsets[0]}; they must agree; the file is damaged",
        )
    return Entry(name, dtype, tuple(shape), *offsets)


def _lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_places(source: Source, entries: Mapping[str, Entry], data: int) -> frozenset[str]:
    """Refuse tensors that do not follow each other up to the end; the names of those a cut file lacks."""
    at = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            what = "overlaps the one before it" if entry.begin < at else "leaves a gap before it"
            source.fail(
                8,
                f"tensor {short(entry.name, 200)} has data_offsets [{entry.begin}, {entry.end}] and {what}, "
                f"which ends at {at}; tensors lie one after the other; the file is damaged",
            )
        at = entry.end
    if source.size > data + at:
        source.fail(
            data + at,
            f"{source.size - data - at} bytes follow the last tensor; the file is damaged or two in one",
        )
    return frozenset(entry.name for entry in entries.values() if entry.end > source.size - data)
