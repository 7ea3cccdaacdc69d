"""Weights in the order that kernels read, on the user's disk: the next process maps them.

``<place>/layouts`` has a file for each model: a line of JSON with the places of its arrays, then the arrays.
A map of it costs no memory that others could not have, and no time but for pages that are read.

An entry is never wrong without a word. Its name is a digest of the state of the model's files: inode, size,
and the times in nanoseconds when content and inode changed last, the second of which no program can set.
Whoever writes to a file gives it another name here, and so does a copy; a renamed folder does not. A file
that changed within the last minute has no name: it could change again and look the same, in one step of the
clock, by memory that another process has mapped, or on a server. Files have one device each, but its number
may be another one after a restart, so it is no part of the name. A key of an array tells its tensors and a
digest of the code that laid it out. An entry has its name only once it is on the disk, whole, and if the
model's files are still in the same state; one of another length than it says is not used.

What cannot be read or written is done without. An entry takes at most a quarter of what is free; where all
take more than MOST, those that were not used for longest go.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import mmap
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.system import room
from .disk import root
from .private import PARTIAL, RELATIVE, Folder, Refused, below

HOME = "layouts"  # within the place
ENTRY = ".layouts"
OURS = re.compile(rf"[0-9a-f]{{32}}{re.escape(ENTRY)}(-[0-9a-f]+{re.escape(PARTIAL)})?")
MOST = 16 << 30  # bytes of all entries
AGE = 60  # seconds since a file's last change
CHUNK = 8 << 20  # bytes that are written at a time
PAGE = 4096  # to whose multiples arrays lie
LEFT = 600  # seconds after which a file without a name is one whose writer was killed
WAIT = 1.0  # seconds that the end of a process waits for an entry that is all but there

Array = NDArray[np.uint8]


class Entry(NamedTuple):
    """A model's weights on the disk."""

    model: str  # the path of its first file, when they were written
    bytes: int
    used: float  # when it was opened last, as time.time()
    path: str


def state_of(paths: Iterable[str]) -> str | None:
    """The name of an entry for files; None where one of them changed just now, or has no times to trust."""
    if not RELATIVE:
        return None
    states = []
    for path in paths:
        try:
            facts = os.stat(path)
        except OSError:
            return None
        if time.time() - max(facts.st_mtime, facts.st_ctime) < AGE:
            return None
        states.append((facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
    return hashlib.blake2b(json.dumps(states).encode(), digest_size=16).hexdigest()


def opened(name: str) -> dict[str, Array]:
    """The arrays of an entry by their keys, read-only maps; none where it is not there."""
    with contextlib.suppress(OSError, Refused, ValueError, LookupError, TypeError), _folder() as folder:
        file = folder.open(name + ENTRY)
        try:
            memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        head = json.loads(memory.readline())
        start, content = _whole(memory.tell()), np.frombuffer(memory, np.uint8)
        if start + head["size"] == len(content):
            with contextlib.suppress(OSError):
                folder.touch(name + ENTRY)
            return {key: _part(content[start:], *place) for key, place in head["arrays"].items()}
    return {}


def _part(content: Array, first: int, rows: int, columns: int) -> Array:
    return content[first : first + rows * columns].reshape(rows, columns)


def _whole(nbytes: int) -> int:
    """So many bytes as whole pages."""
    return -(-nbytes // PAGE) * PAGE


# --- new entries --------------------------------------------------------------------------------

_writers: list[threading.Thread] = []
_ends = threading.Event()


@atexit.register
def _end() -> None:
    """Drop what is not written yet."""
    _ends.set()
    for thread in _writers:
        thread.join(WAIT)


def keep(name: str, paths: Sequence[str], arrays: Mapping[str, Array]) -> None:
    """Write an entry in a thread of its own, instead of the one that has its name."""
    thread = threading.Thread(target=_write, args=(name, paths, arrays), daemon=True)
    _writers.append(thread)
    thread.start()


def _write(name: str, paths: Sequence[str], arrays: Mapping[str, Array]) -> None:
    with contextlib.suppress(OSError, Refused), _folder(new=True) as folder:
        _make_room(folder, sum(_whole(array.nbytes) for array in arrays.values()))
        folder.pour(name + ENTRY, _content(name, paths, arrays), lasting=True)


def _content(name: str, paths: Sequence[str], arrays: Mapping[str, Array]) -> Iterator[Any]:
    """The bytes of an entry; ``Refused`` at the end of the process, or if the files changed meanwhile."""
    places, size = {}, 0
    for key, array in arrays.items():
        places[key] = size, *array.shape
        size += _whole(array.nbytes)
    line = json.dumps({"model": paths[0], "size": size, "arrays": places}).encode() + b"\n"
    yield line.ljust(_whole(len(line)))
    for array in arrays.values():
        flat = array.reshape(-1)
        for first in range(0, len(flat), CHUNK):
            if _ends.is_set():
                raise Refused("the process ends")
            yield flat[first : first + CHUNK].data
        yield bytes(_whole(len(flat)) - len(flat))
    if state_of(paths) != name:
        raise Refused(f"{paths[0]} changed")


def _make_room(folder: Folder, size: int) -> None:
    """Remove what killed writers left, and, for so many bytes, entries that were not used for longest."""
    free = room(folder.path)
    if size > min(MOST, free // 4):
        raise Refused(f"{size} bytes are too many where {free} are free")
    left = MOST - size
    for file, facts in _files(folder):
        left -= facts.st_size
        if left < 0 or (file.endswith(PARTIAL) and facts.st_mtime < time.time() - LEFT):
            with contextlib.suppress(FileNotFoundError):  # another process was first
                folder.remove(file)


# --- the folder -----------------------------------------------------------------------------------


def entries() -> list[Entry]:
    """All entries, the last used first; what is not whole yet, too."""
    with contextlib.suppress(OSError, Refused), _folder() as folder:
        return [
            Entry(_model(folder, file), facts.st_size, facts.st_mtime, str(folder.path / file))
            for file, facts in _files(folder)
        ]
    return []


def empty() -> list[Entry]:
    """Remove all entries, which are returned; a process that has mapped one keeps it."""
    removed = entries()
    with contextlib.suppress(OSError, Refused), _folder() as folder:
        for file, _ in _files(folder):
            with contextlib.suppress(FileNotFoundError):
                folder.remove(file)
    return removed


def _model(folder: Folder, name: str) -> str:
    """The path of the model of an entry."""
    with contextlib.suppress(OSError, Refused, ValueError, LookupError, TypeError):
        line, _, _ = folder.read(name, CHUNK).partition(b"\n")
        return str(json.loads(line)["model"])
    return "?"


def _files(folder: Folder) -> list[tuple[str, os.stat_result]]:
    """Names and facts of our files, the last used first."""
    files = []
    for name in filter(OURS.fullmatch, folder.names()):
        with contextlib.suppress(FileNotFoundError):
            files.append((name, folder.facts(name)))
    return sorted(files, key=lambda file: -file[1].st_mtime)


def _folder(new: bool = False) -> AbstractContextManager[Folder]:
    place = root()
    if place is None:
        raise Refused("switched off by GGMLQ_CACHE_DIR")
    return below(place, HOME, new=new)
