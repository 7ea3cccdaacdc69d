"""The plan of a save: checked and laid out in full before the first byte is written."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from struct import pack
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.tensors import host_array, is_tensor
from ..arrays.weights import Divided
from ..base.devices import is_host
from ..base.system import room
from ..base.text import short, size
from ..errors import GGUFError, GGUFOSError
from ..formats import FORMATS, Format
from ..formats.scalars import SCALARS
from . import file
from .header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MOST_BYTES, aligned
from .metadata import Entry, Metadata, Settable, Stored, Typed, resolve
from .source import Extent, place, release
from .values import MAX_NAME_BYTES, order_sign

# --- tensors: arrays checked, and their bytes for the file, a slab at a time -----------------

MAX_NAME = 63  # bytes: ggml's GGML_MAX_NAME is 64 with the NUL
SLAB_BYTES = 16 << 20  # converted or handed to the system at a time

_BY_DTYPE = {fmt.dtype: fmt for fmt in SCALARS if not fmt.bfloat}
_BY_NAME = {dtype.name: fmt for dtype, fmt in _BY_DTYPE.items()} | {"bfloat16": FORMATS["bf16"]}


class Described(NamedTuple):
    """A tensor as the header will list it."""

    name: str
    format: Format
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.format.block_size * self.format.dtype.itemsize


class Streamed(NamedTuple):
    """A tensor that is made while it is written, so that it never exists in full.

    ``parts`` is called when the tensor's turn comes, and gives its rows in order as QuantArrays of
    its format.
    """

    format: Format
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[QuantArray]]


def describe(name: object, x: Any) -> Described:
    """Check a name and an array; GGUFError with the reason and the way out."""
    _check_name(name)
    assert isinstance(name, str)
    fmt = x.format if isinstance(x, QuantArray | Streamed) else _format(x)
    shape = tuple(int(n) for n in x.shape)
    if len(shape) > MAX_DIMS:
        _refuse(f"it has {len(shape)} axes; ggml's tensors have {MAX_DIMS} at most; reshape it")
    if prod(max(n, 1) for n in shape) * fmt.dtype.itemsize > MOST_BYTES:
        _refuse(f"its shape {shape} counts more than 64 bits hold; cut it down")
    return Described(name, fmt, shape)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        _refuse(f"its name is of type {type(name).__name__}; names are str; rename it")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        _refuse("its name has a lone surrogate, which UTF-8 cannot hold; rename it")
    if size > MAX_NAME:
        _refuse(f"its name has {size} bytes; ggml's names hold {MAX_NAME}; give it a shorter one")
    if not name:
        _refuse("its name is empty, and ggml does not load such a tensor; give it a name")
    if "\0" in name:
        _refuse("its name has a NUL, where C ends a name; rename it")


def _format(x: Any) -> Format:
    """The scalar format of a NumPy or CuPy array."""
    if is_tensor(x):
        return _format_of_tensor(x)
    if isinstance(x, Divided):
        _refuse(f'it is {x!r}, and a file holds whole arrays; pass x.to("cpu")')
    dtype = getattr(x, "dtype", None)
    if not isinstance(dtype, np.dtype) or not hasattr(x, "shape"):
        _refuse(
            f"it is a {type(x).__name__}; tensors are QuantArrays, NumPy or CuPy arrays, or torch's; "
            "convert it with np.asarray(x, np.float32)"
        )
    if isinstance(x, np.ma.MaskedArray):
        _refuse("it is a masked array, and a file has no masks; pass x.filled(0)")
    if dtype.name == "bfloat16":
        return FORMATS["bf16"]
    scalar = _BY_DTYPE.get(dtype.newbyteorder("<"))
    if scalar is None:
        _refuse(
            f"its dtype is {dtype}; GGUF holds {', '.join(str(d) for d in _BY_DTYPE)} and bfloat16; "
            "convert it with x.astype(np.float32), or wrap the bytes of blocks with QuantArray.from_bytes"
        )
    return scalar


def _format_of_tensor(x: Any) -> Format:
    scalar = _BY_NAME.get(str(x.dtype).removeprefix("torch."))
    if scalar is None or str(x.layout) != "torch.strided":
        _refuse(
            f"it is a tensor of {x.dtype}, {x.layout}; GGUF holds dense ones of {', '.join(_BY_NAME)}; "
            "convert it with x.float() or x.to_dense()"
        )
    return scalar


def slabs(x: Any, tensor: Described, byteorder: str) -> Iterator[memoryview | Extent]:
    """The bytes of a tensor in the order of the file. At most one copy of it exists at a time."""
    if isinstance(x, Streamed):
        yield from _streamed(x, tensor, byteorder)
        return
    blocks = _blocks(x, tensor).reshape(-1)
    dtype = tensor.format.dtype.newbyteorder(order_sign(byteorder))
    step = max(1, SLAB_BYTES // dtype.itemsize)
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        data = part.astype(dtype, copy=False).view(np.uint8)
        location = place(data)
        yield data.data if location is None else Extent(*location, data.data)
        release(part)


def _streamed(x: Streamed, tensor: Described, byteorder: str) -> Iterator[memoryview | Extent]:
    left = tensor.nbytes
    for part in x.parts():
        left -= part.nbytes
        if part.format is not tensor.format or left < 0:
            break
        yield from slabs(part, tensor, byteorder)
    if left:
        _refuse(
            f"tensor {tensor.name!r}: its parts are not {tensor.format.name} of shape {tensor.shape}; "
            "they must be its rows, all of them and in order; check what makes them"
        )


def _blocks(x: Any, tensor: Described) -> NDArray[Any]:
    if isinstance(x, QuantArray):
        return np.ascontiguousarray(x.to("cpu").blocks)
    if is_tensor(x):
        x = host_array(x)
    host = x if is_host(x) else x.get()
    host = np.ascontiguousarray(host)
    return host.view(np.uint16) if host.dtype.name == "bfloat16" else host


def _refuse(reason: str) -> NoReturn:
    raise GGUFError(reason)


# --- the place of the new file: its path and the space on the disk ---------------------------

MOST_LINKS = 40  # that lead to each other: as many as Linux follows
DEVICES = ("/dev", "/proc")  # links here are devices in disguise: /dev/stdout is whatever a shell made it


def check_target(path: str) -> None:
    """Refuse a path unless nothing is there, a regular file that may be written to, or an ordinary link.

    A save replaces the link itself; the file that it leads to stays as it is.
    """
    if not os.path.basename(path):
        raise GGUFOSError(f"{path!r} names no file; add a file name such as model.gguf")
    if _is_device(path):
        raise GGUFOSError(f"{path} stands for a device, and a save would replace it; name a file")
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing there, or a link to nothing; what hinders the writing shows then
        return
    if stat.S_ISDIR(mode):
        raise GGUFOSError(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise GGUFOSError(f"{path} is not a regular file, and a save would replace it; name another file")
    # An administrator may write to any file; still refuse, since somebody took the permission away.
    if not mode & 0o222 or not _is_writable(path):
        raise GGUFOSError(
            f"{path} is there and read-only (mode {stat.S_IMODE(mode):04o}); a save would replace it; allow "
            f"writing (chmod u+w), or name another file"
        )


def _is_writable(path: str) -> bool:
    """True if the system opens the file for writing, or if another save has just put it aside.

    ``os.access`` has the same answer for a file that is gone as for one that is read-only.
    """
    try:
        os.close(os.open(path, os.O_WRONLY))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_device(path: str) -> bool:
    """True where links lead through the folders in which the system lists devices and open files."""
    for _ in range(MOST_LINKS):
        if not os.path.islink(path):
            return False
        folder = os.path.realpath(os.path.dirname(path) or ".")
        if folder in DEVICES or folder.startswith(("/dev/fd", "/proc/")):
            return True
        path = os.path.join(folder, os.readlink(path))
    return False


def check_room(files: Iterable[tuple[str, int]]) -> None:
    """Refuse files that do not fit beside the old ones, which stay until the new ones are whole.

    The system states its free space. Nothing is reserved, because ``posix_fallocate`` writes all bytes on
    some file systems.
    """
    needed: Counter[str] = Counter()
    for path, nbytes in files:
        needed[os.path.dirname(path) or "."] += nbytes
    for folder, nbytes in needed.items():
        free = room(folder)
        if nbytes > free:
            raise GGUFOSError(
                f"{folder}: the disk has {size(free)} free, the new file needs {size(nbytes)}, beside what "
                "it may replace; make room, or save to another disk"
            )


# --- headers and parts -----------------------------------------------------------------------

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
    if len(parts) > file.MAX_PARTS:
        limit = f"split_max_bytes={limits.nbytes}" if limits.nbytes else f"split_max_tensors={limits.tensors}"
        raise GGUFError(f"{limit} makes {len(parts)} parts; {file.MAX_PARTS} are possible; raise it")
    return parts


def _of_counts(tensors: Sequence[Described], counts: Sequence[int]) -> list[list[Described]]:
    if sum(counts) != len(tensors) or min(counts, default=1) < 1 or len(counts) > file.MAX_PARTS:
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
        check_target(part_path)
    return paths


def _names(path: str, count: int) -> list[str]:
    part = file.parse_name(path)
    if count == 1:
        if part is not None and part.total > 1:
            raise GGUFError(
                f"the name {os.path.basename(path)!r} says part {part.part} of {part.total}, this is a "
                f"whole model and would not open under it; name it {part.stem}.gguf"
            )
        return [path]
    folder, base = os.path.split(path)
    stem = part.stem if part else base.removesuffix(".gguf")
    return [os.path.join(folder, file.part_name(stem, i + 1, count)) for i in range(count)]


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
    entries = {key: entry for key, entry in metadata.entries.items() if key not in file.KEYS}
    if ALIGNMENT_KEY in entries or alignment != DEFAULT_ALIGNMENT:
        entries[ALIGNMENT_KEY] = Settable(resolve(Typed(alignment, "uint32")))
    return entries


def _split_entries(index: int, parts: int, tensors: int) -> dict[str, Entry]:
    values = {file.NO: (index, "uint16"), file.COUNT: (parts, "uint16"), file.TENSORS: (tensors, "int32")}
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
