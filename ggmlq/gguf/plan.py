"""The plan of a save: checked and laid out in full before the first byte is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from struct import pack
from types import MappingProxyType
from typing import NamedTuple

from ..base.text import short
from ..errors import GGUFError
from . import split, target
from .header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, aligned
from .inputs import Described
from .metadata import Entry, Metadata, Settable, Stored
from .typed import Typed, resolve
from .valuetype import MAX_NAME_BYTES, order_sign

VERSION = 3
ALIGNMENTS = (8, 1 << 20)  # GGUF wants a multiple of 8, ggml a power of two and at most a MiB

Chunk = bytes | memoryview


class Layout(NamedTuple):
    """The alignment and byte order of every part."""

    byteorder: str
    alignment: int


class Limits(NamedTuple):
    """The limits of a part; a sequence of counts fixes the number of tensors in each part."""

    nbytes: int | None = None
    tensors: int | Sequence[int] | None = None


class PartPlan(NamedTuple):
    """One file: its name, its header, and its tensors in order."""

    path: str
    header: list[Chunk]  # padded to the alignment
    tensors: list[Described]


def choose_alignment(metadata: Metadata, alignment: int, explicit: bool) -> int:
    """The alignment: the argument, or general.alignment; the user's values of both must not differ."""
    entry = metadata.entries.get(ALIGNMENT_KEY)
    came = isinstance(entry, Stored) and not explicit
    if entry is not None and not (explicit and isinstance(entry, Stored)):
        value = metadata[ALIGNMENT_KEY]
        if explicit and value != alignment:
            raise GGUFError(
                f"alignment={alignment}, but {ALIGNMENT_KEY} in the metadata is {value!r}; give one of them"
            )
        alignment = value
    low, high = ALIGNMENTS
    whole = hasattr(alignment, "__index__") and not isinstance(alignment, bool)
    if not whole or not low <= alignment <= high or alignment & (alignment - 1):
        way = f"{ALIGNMENT_KEY} came with the file; pass alignment=32" if came else "32 is usual"
        raise GGUFError(f"alignment {alignment!r}; it must be a power of two from {low} to {high}; {way}")
    return int(alignment)


def check_keys(metadata: Metadata) -> None:
    """Refuse keys that readers of GGUF do not accept."""
    for key in metadata:
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise GGUFError(
                f"the key {key!r:.80} has a lone surrogate, which UTF-8 cannot hold; rename it"
            ) from None
        if not 0 < size <= MAX_NAME_BYTES:
            raise GGUFError(
                f"the key {key!r:.80} has {size} bytes; keys have 1 to {MAX_NAME_BYTES}; rename it"
            )
        if "\0" in key:
            raise GGUFError(f"the key {key!r:.80} has a NUL, where C ends a key; rename it")


def groups(tensors: Sequence[Described], limits: Limits) -> list[list[Described]]:
    """The tensors of each part, in order; a tensor larger than the limit gets a part of its own."""
    if isinstance(limits.tensors, Sequence):
        return _of_counts(tensors, limits.tensors)
    parts: list[list[Described]] = [[]]
    filled = 0
    for tensor in tensors:
        full = limits.nbytes is not None and filled + tensor.nbytes > limits.nbytes
        if parts[-1] and (full or len(parts[-1]) == limits.tensors):
            parts.append([])
            filled = 0
        parts[-1].append(tensor)
        filled += tensor.nbytes
    if len(parts) > split.MAX_PARTS:
        limit = f"split_max_bytes={limits.nbytes}" if limits.nbytes else f"split_max_tensors={limits.tensors}"
        raise GGUFError(f"{limit} makes {len(parts)} parts; {split.MAX_PARTS} are possible; raise it")
    return parts


def _of_counts(tensors: Sequence[Described], counts: Sequence[int]) -> list[list[Described]]:
    if sum(counts) != len(tensors) or min(counts, default=1) < 1 or len(counts) > split.MAX_PARTS:
        raise GGUFError(
            f"split_max_tensors={short(counts)}: the parts take {sum(counts)} tensors, there are "
            f"{len(tensors)}; give how many each part has, 1 or more, for all of them; or one number, the "
            "most that a part may have"
        )
    ends = list(accumulate(counts))
    return [list(tensors[end - n : end]) for end, n in zip(ends, counts, strict=True)] or [[]]


def names(path: str, count: int) -> list[str]:
    """The paths of the parts; a single part keeps the plain name."""
    paths = _names(path, count)
    for part_path in paths:
        target.check(part_path)
    return paths


def _names(path: str, count: int) -> list[str]:
    part = split.parse_name(path)
    if count == 1:
        if part is not None and part.total > 1:
            raise GGUFError(
                f"the name {os.path.basename(path)!r} says part {part.part} of {part.total}, this is a "
                f"whole model and would not open under it; name it {part.stem}.gguf"
            )
        return [path]
    folder, base = os.path.split(path)
    stem = part.stem if part else base.removesuffix(".gguf")
    return [os.path.join(folder, split.part_name(stem, i + 1, count)) for i in range(count)]


def plan(
    path: str, tensors: Sequence[Described], metadata: Metadata, layout: Layout, limits: Limits
) -> list[PartPlan]:
    """The plans of all parts of a model, ready to be written."""
    parts = groups(tensors, limits)
    plans = []
    for index, (name, group) in enumerate(zip(names(path, len(parts)), parts, strict=True)):
        entries = _split_entries(index, len(parts), len(tensors)) if len(parts) > 1 else {}
        plans.append(part(name, group, metadata if index == 0 else Metadata({}), layout, entries))
    return plans


def part(
    name: str, tensors: Sequence[Described], metadata: Metadata, layout: Layout,
    besides: Mapping[str, Entry] = MappingProxyType({}),
) -> PartPlan:  # fmt: skip
    """The plan of one file; ``besides``: metadata of this file alone."""
    entries = {**_entries(metadata, layout.alignment), **besides}
    return PartPlan(name, _header(entries, tensors, layout), list(tensors))


def _entries(metadata: Metadata, alignment: int) -> dict[str, Entry]:
    """The metadata without keys that describe the files it came from."""
    entries = {key: entry for key, entry in metadata.entries.items() if key not in split.KEYS}
    if ALIGNMENT_KEY in entries or alignment != DEFAULT_ALIGNMENT:
        entries[ALIGNMENT_KEY] = Settable(resolve(Typed(alignment, "uint32")))
    return entries


def _split_entries(index: int, parts: int, tensors: int) -> dict[str, Entry]:
    values = {split.NO: (index, "uint16"), split.COUNT: (parts, "uint16"), split.TENSORS: (tensors, "int32")}
    return {key: Settable(resolve(Typed(*value))) for key, value in values.items()}


def _header(entries: Mapping[str, Entry], tensors: Sequence[Described], layout: Layout) -> list[Chunk]:
    sign = order_sign(layout.byteorder)
    chunks: list[Chunk] = [MAGIC + pack(sign + "IQQ", VERSION, len(tensors), len(entries))]
    for key, entry in entries.items():
        chunks.append(_name(key, sign) + pack(sign + "I", entry.type))
        chunks += entry.encode(layout.byteorder)
    chunks += _table(tensors, layout)
    size = sum(len(chunk) for chunk in chunks)
    chunks.append(bytes(aligned(size, layout.alignment) - size))
    return chunks


def _table(tensors: Sequence[Described], layout: Layout) -> Iterator[bytes]:
    sign, offset = order_sign(layout.byteorder), 0
    for tensor in tensors:
        ne = tensor.shape[::-1]
        yield _name(tensor.name, sign) + pack(f"{sign}I{len(ne)}QIQ", len(ne), *ne, tensor.format.id, offset)
        offset = aligned(offset + tensor.nbytes, layout.alignment)


def _name(name: str, sign: str) -> bytes:
    raw = name.encode()
    return pack(sign + "Q", len(raw)) + raw
