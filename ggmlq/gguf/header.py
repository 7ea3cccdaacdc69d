"""The header of a file: magic, version, byte order, metadata and the table of tensors.

    magic "GGUF" · version u32 · tensors u64 · keys u64
    keys     name · type u32 · value
    tensors  name · dims u32 · ne u64 … · type u32 · offset u64
    padding to the alignment, then the data; offsets count from there

A name or a string is a length u64 and UTF-8 bytes. An array is a type u32, a length u64 and its
elements. A bool is a byte. Version 3 may be big-endian in all of that; the magic never is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from . import foreign, limits, tensors
from .metadata import Stored
from .node import skip
from .source import Source
from .tensors import TensorInfo
from .valuetype import ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FIXED_BYTES = 24  # magic, version and the two counts
LEAST_KEY_BYTES = 13  # an empty key, its type and a value of one byte
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32


class Header(NamedTuple):
    """The parsed header of a GGUF file: all facts that are known before a tensor is read."""

    version: int
    byteorder: str  # "little" or "big"
    alignment: int
    metadata: Mapping[str, Stored]
    tensors: Mapping[str, TensorInfo]
    end: int  # of the table of tensors
    data: int  # where offsets count from: end, aligned
    absent: frozenset[str] = frozenset()  # tensors that the file ends before


def parse(source: Source, first: int | None = None) -> Header:
    """Read and check the header; GGUFError with offset and reason where a rule is broken.

    ``first``: the alignment of the first part, for a later part of a split model.
    """
    version = _version(source)
    n_tensors, n_keys = _counts(source)
    keys, at = _keys(source, n_keys)
    infos: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        info, end = tensors.read_info(source, at)
        if info.name in infos:
            source.fail(at, f"tensor {info.name!r} is there twice; names must differ; the file is damaged")
        infos[info.name] = info
        at = end
    alignment = _alignment(source, keys)
    if alignment is None:
        alignment = _unsaid_alignment(source, at, infos.values(), first)
    data = aligned(at, alignment)
    absent = tensors.check_places(source, list(infos.values()), data, alignment)
    return Header(version, source.byteorder, alignment, keys, infos, at, data, absent)


def aligned(at: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-at // alignment) * alignment


def _version(source: Source) -> int:
    """Version and byte order: the number makes sense in one order only."""
    magic = source.map[:4]
    if magic != MAGIC:
        source.fail(0, f"starts with {magic!r}, not {MAGIC!r}; {foreign.explanation(source.map)}")
    version = source.u32(4, "the version")
    if version not in VERSIONS and int.from_bytes(source.map[4:8], "big") in VERSIONS:
        source.set_byteorder("big")
        version = source.u32(4, "the version")
    if version not in VERSIONS:
        old = "; version 1 had 32-bit lengths, convert it anew" if version in (1, 1 << 24) else ""
        source.fail(
            4,
            f"has version {version}; ggmlq reads {' and '.join(map(str, VERSIONS))}"
            f"{old or '; the file is damaged, or newer than this ggmlq: update it'}",
        )
    return version


def _counts(source: Source) -> tuple[int, int]:
    n_tensors = source.u64(8, "the number of tensors")
    n_keys = source.u64(16, "the number of keys")
    room = source.size - FIXED_BYTES
    if n_tensors * tensors.LEAST_BYTES + n_keys * LEAST_KEY_BYTES > room:
        source.fail(
            8,
            f"{n_tensors} tensors and {n_keys} keys need more than the {room} bytes left; the file is cut "
            f"short or damaged, or its version is not {source.byteorder}-endian like the rest",
        )
    source.count(8, limits.TENSORS, n_tensors)
    source.count(16, limits.KEYS, n_keys)
    return n_tensors, n_keys


def _keys(source: Source, count: int) -> tuple[dict[str, Stored], int]:
    keys: dict[str, Stored] = {}
    at = FIXED_BYTES
    for _ in range(count):
        key, start = source.name(at, "a key")
        if key in keys:
            source.fail(at, f"the key {key!r} is there twice; keys must differ; the file is damaged")
        number = source.u32(start, f"the type of {key!r}")
        kind = ValueType.parse(number)
        if kind is None:
            source.fail(
                start, f"the value of {key!r} has type {number}; GGUF has 0 to 12; the file is damaged"
            )
        at = skip(source, kind, start + 4)
        keys[key] = Stored(source, key, kind, start + 4, at)
        source.count(start, limits.BYTES, at - start)
    return keys, at


def _alignment(source: Source, keys: Mapping[str, Stored]) -> int | None:
    stored = keys.get(ALIGNMENT_KEY)
    if stored is None:
        return None
    if stored.type is not ValueType.UINT32:
        source.fail(
            stored.start, f"{ALIGNMENT_KEY} is {stored.words()}; it must be a uint32; the file is damaged"
        )
    alignment: int = stored.decode()
    if alignment == 0 or alignment & (alignment - 1):
        source.fail(
            stored.start, f"{ALIGNMENT_KEY} is {alignment}; it must be a power of two; the file is damaged"
        )
    return alignment


def _unsaid_alignment(source: Source, end: int, infos: Collection[TensorInfo], first: int | None) -> int:
    """The alignment of a file without the key: 32, but in a later part of a model it may be the first's.

    gguf-py writes the key into the first part only and pads all parts alike; llama.cpp's gguf-split
    writes the others with 32. Which one wrote a part shows in the size of the file.
    """
    if first is None or first == DEFAULT_ALIGNMENT or not infos:
        return DEFAULT_ALIGNMENT
    last = max(info.offset + info.nbytes for info in infos)
    choices = sorted({first, DEFAULT_ALIGNMENT}, reverse=True)
    for alignment in choices:
        start = aligned(end, alignment)
        fits = source.size in (start + last, start + aligned(last, alignment))
        if fits and not any(info.offset % alignment for info in infos):
            return alignment
    source.fail(
        end,
        f"there is no {ALIGNMENT_KEY} in this part of a model, the first part says {first}, and the file has "
        f"neither the size that {choices[0]} gives nor that of {choices[1]}; it is cut short or damaged, "
        "fetch it again",
    )
