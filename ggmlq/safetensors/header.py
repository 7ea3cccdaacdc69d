"""Reader of the header of a safetensors file: a length, and a JSON object with the place of each tensor.

    length u64, little-endian · JSON: name -> dtype, shape, data_offsets; "__metadata__" -> texts · the data

Offsets count from the end of the JSON. Tensors lie without gaps from the first byte of the data to the last.
Everything is checked before a tensor is looked at; a file that ends too early, and is right otherwise, is
taken for a download that was cut off, and opens with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar, NamedTuple

from ..base.text import short
from ..errors import SafetensorsError, SafetensorsNotFoundError, SafetensorsOSError
from ..gguf import foreign, limits, source
from ..gguf.tensors import MOST_BYTES
from . import jsons
from .dtypes import TYPES, ElementType

METADATA = "__metadata__"
FIELDS = {"dtype", "shape", "data_offsets"}
MOST_HEADER = 100_000_000  # bytes of JSON: what the format allows
MOST_AXES = 32
KIND = source.Kind(
    "safetensors", "safetensors file", SafetensorsError, SafetensorsOSError, SafetensorsNotFoundError, 10
)


class Source(source.Source):
    """The checked bytes of a safetensors file."""

    kind: ClassVar[source.Kind] = KIND


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
    reason = foreign.safetensors_explanation(source.map)
    if reason:
        source.fail(0, reason)
    length = source.u64(0, "the length of the header")
    if source.map[8:9] not in (b"{", b""):
        source.fail(0, foreign.explanation(source.map, "safetensors"))
    if length > MOST_HEADER:
        source.fail(
            0, f"the header claims {length} bytes; the format allows {MOST_HEADER}; the file is damaged"
        )
    source.need(8, length, "the header")
    table = _parsed(source, length)
    metadata = _metadata(source, table.pop(METADATA, {}))
    source.count(8, limits.TENSORS, len(table))
    entries = {name: _entry(source, name, fields) for name, fields in table.items()}
    return Header(entries, metadata, 8 + length, _check_places(source, entries, 8 + length))


def _parsed(source: Source, length: int) -> dict[str, Any]:
    tensors, keys = limits.most(limits.TENSORS), limits.most(limits.KEYS)
    try:  # an entry has three brackets and, of a matrix, five commas
        table = jsons.parsed(source.map[8 : 8 + length], 4 * tensors, 8 * tensors + keys)
    except ValueError as error:
        source.fail(8, f"the header: {error}; the file is damaged")
    if not isinstance(table, dict):
        source.fail(8, "the header is no JSON object; the file is damaged")
    return table


def _metadata(source: Source, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        source.fail(8, f"{METADATA} is {short(metadata)}; it maps texts to texts; the file is damaged")
    source.count(8, limits.KEYS, len(metadata))
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
