"""Changes the metadata of a GGUF file in place, without writing the tensors again, if its header has room.

The data begin at a multiple of the alignment, so a header may grow into the padding before them, 0 to 31
bytes as a rule. A key of our own, an array of zeros that other programs skip, reserves more room:

    header · keys … ggmlq.room [0, 0, 0, …] · table of tensors · padding | data

A longer text takes bytes from the room, a shorter one gives some back, and the data stay where they are.
Where that does not work out the file is written anew, as `save` does: whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from struct import pack
from typing import Any

import numpy as np

from ..base.system import flags
from ..errors import GGUFError, GGUFOSError
from .file import KEYS, GGUFFile
from .header import ALIGNMENT_KEY, FIXED_BYTES, MAGIC, Header, aligned
from .metadata import Entry, Metadata, Typed
from .plan import check_keys
from .source import Source
from .values import order_sign

ROOM = "ggmlq.room"
ROOM_BYTES = 8 + len(ROOM) + 4 + 4 + 8  # of the key with no zero in it


def with_room(metadata: Metadata, nbytes: int) -> Metadata:
    """Metadata with so many bytes of reserved room, or without room."""
    bare = metadata.without(ROOM) if ROOM in metadata else metadata
    if not nbytes:
        return bare
    return bare | {ROOM: Typed(np.zeros(max(0, nbytes - ROOM_BYTES), np.uint8), "uint8")}


def renamed(metadata: Metadata, old: str, new: str) -> Metadata:
    """Metadata with one key renamed, in the same position."""
    if new in metadata and new != old:
        raise GGUFError(f"rename {old!r} to {new!r}: there is such a key already; remove it first")
    metadata.type(old)  # is there, or the error that names what is near
    return Metadata({new if key == old else key: entry for key, entry in metadata.entries.items()})


def why_not_in_place(file: GGUFFile, metadata: Metadata) -> str | None:
    """The reason why this metadata needs a new file; None where it fits into the header in place."""
    if len(file.paths) > 1:
        return "it is one of several parts"
    for key, why in ((ALIGNMENT_KEY, "another alignment"), (ROOM, "another room")):
        if metadata.entries.get(key) is not file.metadata.entries.get(key):
            return f"{why} moves the tensors"
    if file.parts[0].source.map.grows:
        return "it lies elsewhere"
    path = file.parts[0].source.map.path
    if os.path.islink(path) or os.stat(path).st_nlink > 1:
        return "other names lead to its bytes too, and they are to stay as they are"
    return None if _fitted(file, metadata) is not None else "the header has not the room"


def change(file: GGUFFile, metadata: Metadata) -> None:
    """Write metadata into the file in place; call :func:`why_not_in_place` first.

    Only bytes that differ are written. If that fails, the old bytes are written back.
    """
    header = _fitted(file, metadata)
    source = file.parts[0].source
    if header is None or not source.is_current():
        raise GGUFError(f"{file.path}: its header changed, or has not the room; open the file again")
    before = np.frombuffer(source.map[: len(header)], np.uint8)
    differ = np.flatnonzero(before != np.frombuffer(header, np.uint8))
    if not len(differ):
        return
    start, end = int(differ[0]), int(differ[-1]) + 1
    old = before[start:end].tobytes()
    try:
        fd = os.open(source.map.path, flags("O_RDWR", "O_BINARY"))
    except OSError as error:
        raise GGUFOSError(
            f"{file.path}: cannot be written to: {error.strerror or error}; check its permissions", error
        ) from error
    try:
        _put(fd, start, header[start:end])
    except BaseException as error:
        _put(fd, start, old)
        if isinstance(error, OSError):
            raise GGUFOSError(
                f"{file.path}: the system refused: {error.strerror or error}; the file is as it was", error
            ) from error
        raise
    finally:
        os.close(fd)


def _put(fd: int, start: int, data: bytes) -> None:
    os.lseek(fd, start, os.SEEK_SET)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)


def _fitted(file: GGUFFile, metadata: Metadata) -> bytes | None:
    """A header with this metadata of the same length as the file's; None where there is none."""
    source, header = file.parts[0]
    check_keys(metadata)
    # Keys that describe the file and not the model stay, whatever the new metadata say.
    reserved: dict[str, Entry] = {key: stored for key, stored in header.metadata.items() if key in KEYS}
    entries = reserved | {key: entry for key, entry in metadata.entries.items() if key not in KEYS}
    bare = {key: entry for key, entry in entries.items() if key != ROOM}
    room = _encoded(source, header, bare)
    left = header.data - len(room)
    if left < 0:
        return None
    if ROOM not in entries and aligned(len(room), file.alignment) == header.data:
        return room + bytes(left)
    if left < ROOM_BYTES:
        return room + bytes(left) if aligned(len(room), file.alignment) == header.data else None
    zeros = Metadata.of({ROOM: Typed(np.zeros(left - ROOM_BYTES, np.uint8), "uint8")})
    return _encoded(source, header, {**bare, **zeros.entries})


def _encoded(source: Source, header: Header, entries: Mapping[str, Entry]) -> bytes:
    """Magic, counts, keys, and the table of tensors as it lies in the file."""
    sign = order_sign(header.byteorder)
    chunks: list[Any] = [MAGIC + pack(sign + "IQQ", header.version, len(header.tensors), len(entries))]
    for key, entry in entries.items():
        raw = key.encode()
        chunks.append(pack(sign + "Q", len(raw)) + raw + pack(sign + "I", entry.type))
        chunks += entry.encode(header.byteorder)
    table = max((stored.end for stored in header.metadata.values()), default=FIXED_BYTES)
    chunks.append(source.map[table : header.end])
    return b"".join(chunks)
