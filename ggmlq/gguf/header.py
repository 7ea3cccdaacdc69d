"""The header of a file: magic, version, byte order, metadata and the table of tensors.

    magic "GGUF" · version u32 · tensors u64 · keys u64
    keys     name · type u32 · value
    tensors  name · dims u32 · ne u64 … · type u32 · offset u64
    padding to the alignment, then the data; offsets count from there

A name or a string is a length u64 and UTF-8 bytes. An array is a type u32, a length u64 and its
elements. A bool is a byte. Version 3 may be big-endian in all of that; the magic never is.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Mapping
from itertools import pairwise
from math import prod
from typing import NamedTuple, NoReturn

import numpy as np

from ..arrays.array import QuantArray
from ..base.text import short
from ..errors import FormatError, GGUFError
from ..formats import FORMATS, Format
from .metadata import Stored
from .node import skip
from .source import BYTES, KEYS, TENSORS, Source
from .values import ValueType

# --- the table of tensors --------------------------------------------------------------------

MAX_DIMS = 4  # of ggml's tensors
LEAST_BYTES = 24  # of a tensor's entry: length of the name, number of dims, type, offset
MOST_BYTES = 2**63 - 1  # of a tensor: ggml and NumPy count in signed 64 bits


class TensorInfo(NamedTuple):
    """One entry of the table: the name, place, type and shape of a tensor."""

    name: str
    format: Format
    shape: tuple[int, ...]  # NumPy order, the reverse of ggml's
    offset: int  # from the start of the data
    nbytes: int
    entry: int  # byte of the header at which its entry starts


def read_info(source: Source, at: int) -> tuple[TensorInfo, int]:
    """One entry of the table, and the place of its end."""
    entry = at
    name, at = source.name(at, "the name of a tensor")
    n_dims = source.u32(at, f"tensor {name!r}")
    if n_dims > MAX_DIMS:
        source.fail(
            at, f"tensor {name!r} has {n_dims} dimensions; ggml has 0 to {MAX_DIMS}; the file is damaged"
        )
    source.need(at + 4, 8 * n_dims + 12, f"tensor {name!r}")
    ne = [source.u64(at + 4 + 8 * i, "a dimension") for i in range(n_dims)]
    at += 4 + 8 * n_dims
    number, offset = source.u32(at, "a type"), source.u64(at + 4, "an offset")
    try:
        fmt = FORMATS[number]
    except FormatError as error:
        raise GGUFError(
            f"gguf: {source.path}: at byte {at}: tensor {name!r} has type {number}: {error}"
        ) from None
    info = TensorInfo(name, fmt, tuple(reversed(ne)), offset, _nbytes(source, entry, name, fmt, ne), entry)
    return info, at + 12


def _nbytes(source: Source, entry: int, name: str, fmt: Format, ne: list[int]) -> int:
    """Bytes of a tensor; Python's integers do not overflow, ggml's and NumPy's must not either."""
    if prod(max(n, 1) for n in ne) * fmt.dtype.itemsize > MOST_BYTES:
        source.fail(
            entry,
            f"tensor {name!r} has dimensions {ne}, more bytes than 64 bits can count; the file is damaged",
        )
    row = ne[0] if ne else 1
    if row % fmt.block_size:
        source.fail(
            entry,
            f"tensor {name!r} has rows of {row} elements, {fmt.name} blocks hold {fmt.block_size}; the file "
            "is damaged",
        )
    return prod(ne) // fmt.block_size * fmt.dtype.itemsize


def check_places(source: Source, infos: list[TensorInfo], start: int, alignment: int) -> frozenset[str]:
    """Refuse tensors that are not aligned, lie outside of the file, or overlap; the names of missing ones.

    If tensors follow each other without gaps, as all writers put them, and the file ends too early, it is
    taken for a download that was cut off. The result names the tensors that it lacks.
    """
    room = source.size - start
    whole = _follow(infos, alignment)
    absent = set()
    for info in infos:
        if info.offset % alignment:
            source.fail(
                info.entry,
                f"tensor {info.name!r} has offset {info.offset}, no multiple of the alignment {alignment}; "
                "the file is damaged",
            )
        # The padding before an empty tensor may be missing at the end of a file.
        outside = info.offset + info.nbytes > room + (0 if info.nbytes else alignment - 1)
        if outside and whole:
            absent.add(info.name)
        elif outside:
            source.fail(
                info.entry,
                f"tensor {info.name!r} needs bytes {start + info.offset} to "
                f"{start + info.offset + info.nbytes}, the file has {source.size}; it is cut short or "
                "damaged, fetch it again",
            )
    placed = sorted((info for info in infos if info.nbytes), key=lambda info: info.offset)
    for a, b in pairwise(placed):
        if a.offset + a.nbytes > b.offset:
            source.fail(
                b.entry,
                f"tensor {b.name!r} at offset {b.offset} overlaps {a.name!r}, which ends at "
                f"{a.offset + a.nbytes}; the file is damaged",
            )
    return frozenset(absent)


def _follow(infos: list[TensorInfo], alignment: int) -> bool:
    """True where each tensor starts at the end of the one before it."""
    expected = 0
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != expected:
            return False
        expected = -(-(info.offset + info.nbytes) // alignment) * alignment
    return True


def fail_absent(source: Source, info: TensorInfo, start: int) -> NoReturn:
    """Raise the error for a tensor that a cut file lacks."""
    source.fail(
        info.entry,
        f"tensor {info.name!r} needs bytes {start + info.offset} to {start + info.offset + info.nbytes}, "
        f"the file has {source.size}; the download was cut off; fetch the file again",
    )


def piece(q: QuantArray, start: int, shape: tuple[int, ...]) -> QuantArray:
    """A view of some elements of an array on the host, from element ``start`` on, in another shape.

    Whole blocks: ``start`` and the rows of ``shape`` are multiples of the format's.
    """
    size = q.format.block_size
    blocks = q.blocks.reshape(-1)[start // size : (start + prod(shape)) // size]
    blocks = blocks.reshape(*shape[:-1], shape[-1] // size)
    return QuantArray(q.format, shape, blocks.view(np.uint8), blocks.dtype != q.format.dtype)


def view(source: Source, info: TensorInfo, start: int) -> QuantArray:
    """The tensor as a QuantArray on the memory map; not a byte of it is touched."""
    begin = start + info.offset if info.nbytes else 0  # an empty tensor may claim any place
    row_bytes = info.format.row_bytes(info.shape[-1] if info.shape else 1)
    raw = source.stored(info.name, begin, info.nbytes).reshape(*info.shape[:-1], row_bytes)
    swapped = source.byteorder == "big" and info.format.dtype.newbyteorder() != info.format.dtype
    return QuantArray(info.format, info.shape, raw, swapped)


# --- explanations of files of other kinds ----------------------------------------------------

HEAD = 512  # bytes looked at
CONVERT = "save it as safetensors with what made it (safetensors.torch.save_file), which gq.open reads"
UNPACK = "unpack it, and open the .gguf file in it"

# The first that fits counts: a pattern at the start of the file, what it is, and the way out.
KINDS = [
    (
        rb".{5}\0{3}\{",
        "a safetensors file",
        "open it with gq.open; `ggmlq convert` makes a GGUF file of its folder",
    ),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS, the file itself was not fetched",
        "run `git lfs pull`, or download it",
    ),
    (
        rb"(?i)\s*(<!doctype html|<html|<\?xml|<head)",
        "a web page, such as a download gives that was refused",
        "open its address in a browser, log in, and fetch the file itself",
    ),
    (
        rb"PK\x03\x04.{26,80}\.npy",
        "an npz file of NumPy",
        "save its arrays with gq.save(path, dict(np.load(npz)))",
    ),
    (rb"PK\x03\x04.{26,120}(data\.pkl|/version)", "a checkpoint of PyTorch", CONVERT),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive", UNPACK),
    (rb"\x93NUMPY", "an npy file of NumPy", 'save its array with gq.save(path, {"name": np.load(npy)})'),
    (rb"\x1f\x8b", "one packed with gzip", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "one packed with zstd", UNPACK),
    (rb"\xfd7zXZ\0", "one packed with xz", UNPACK),
    (rb"BZh[1-9]", "one packed with bzip2", UNPACK),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (rb".{257}ustar", "a tar archive", UNPACK),
    (rb"\x80[\x02-\x05]", "a pickle, such as an old checkpoint of PyTorch", CONVERT),
    (
        rb"lmgg|fmgg|tjgg|algg",
        "a model of ggml from before GGUF",
        "fetch it anew as GGUF, or convert it with an old llama.cpp",
    ),
    (rb"\0{4}", "zeros, as a download leaves them that was cut off", "fetch it again"),
]
SAFETENSORS = re.compile(rb".{5}\0{3}\{", re.DOTALL)  # a header of 1 TiB at most
WORDS = re.compile(rb"[\x20-\x7e\s]+")


def explanation(data: mmap.mmap, expected: str = "GGUF") -> str:
    """A sentence that says what kind of file these bytes are, for an error that they are no ``expected``."""
    head = data[:HEAD]
    kind = _known(head)
    if kind:
        return f"this is no {expected} file but {kind}"
    if len(data) < HEAD and WORDS.fullmatch(head):
        text = short(head.decode().strip(), 100)
        return f"this is no {expected} file but a text, {text}; fetch the file itself"
    return f"this is no {expected} file; check the path, or fetch it again"


def safetensors_explanation(data: mmap.mmap) -> str | None:
    """The explanation where a safetensors file is expected, before its first bytes are read as a length."""
    head = data[:HEAD]
    kind = None if SAFETENSORS.match(head) else _known(head)
    return kind and f"this is no safetensors file but {kind}"


def _known(head: bytes) -> str | None:
    for pattern, what, way in KINDS:
        if re.match(pattern, head, re.DOTALL):
            return f"{what}; {way}"
    return None


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
        info, end = read_info(source, at)
        if info.name in infos:
            source.fail(at, f"tensor {info.name!r} is there twice; names must differ; the file is damaged")
        infos[info.name] = info
        at = end
    alignment = _alignment(source, keys)
    if alignment is None:
        alignment = _unsaid_alignment(source, at, infos.values(), first)
    data = aligned(at, alignment)
    absent = check_places(source, list(infos.values()), data, alignment)
    return Header(version, source.byteorder, alignment, keys, infos, at, data, absent)


def aligned(at: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-at // alignment) * alignment


def _version(source: Source) -> int:
    """Version and byte order: the number makes sense in one order only."""
    magic = source.map[:4]
    if magic != MAGIC:
        source.fail(0, f"starts with {magic!r}, not {MAGIC!r}; {explanation(source.map)}")
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
    if n_tensors * LEAST_BYTES + n_keys * LEAST_KEY_BYTES > room:
        source.fail(
            8,
            f"{n_tensors} tensors and {n_keys} keys need more than the {room} bytes left; the file is cut "
            f"short or damaged, or its version is not {source.byteorder}-endian like the rest",
        )
    source.count(8, TENSORS, n_tensors)
    source.count(16, KEYS, n_keys)
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
        source.count(start, BYTES, at - start)
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
