"""Where files with holes are kept, how much of them, and how they go.

In ``<cache>/remote`` each has a folder, named by a digest of its address, version and length, so another
version of a file never meets what was fetched of this one. Where a server names no version, nothing is kept
longer than the process. Folders that were not opened for longest go when all take more than LIMIT, or when
somebody empties the shelf; who has one of these files open keeps it until it is closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

from ..cache import root
from ..cache.private import Folder, Refused, make
from ..errors import RemoteError
from .held import Held, Origin
from .ranges import Ranges

HOME = "remote"  # within the cache
NAME = re.compile(r"[0-9a-f]{40}")
DATA, TABLE, ABOUT = "data", "table", "about.json"
LIMIT = 64 << 30  # bytes on the disk, unless GGMLQ_REMOTE_BYTES says otherwise


class Entry(NamedTuple):
    """A file that is kept."""

    address: str
    size: int  # of the file
    there: int  # bytes of it on this disk
    used: float  # when it was opened last, as time.time()
    path: str  # the folder


def hold(url: str, shown: str, origin: Origin, version: str | None) -> Held:
    """The file with holes for a file elsewhere, new or as it was left."""
    assert origin.size is not None
    folder = _folder(url, version, origin.size)
    if folder is None:
        return _for_now(origin, shown)
    try:
        make(folder)
        with Folder(folder) as opened:
            about = {"address": shown, "version": version, "size": origin.size}
            opened.write(ABOUT, json.dumps(about).encode())  # its time tells when it was opened
        trim(folder.name)
        return Held(str(folder / DATA), str(folder / TABLE), origin.size, origin, shown)
    except (Refused, OSError) as error:
        if isinstance(error, RemoteError):
            raise
        return _for_now(origin, shown)  # a place that cannot be used is done without


def _folder(url: str, version: str | None, size: int) -> Path | None:
    if version is None:
        return None
    with contextlib.suppress(Refused):
        place = root()
        if place is not None:
            digest = hashlib.blake2b(f"{url}\n{version}\n{size}".encode(), digest_size=20)
            return place / HOME / digest.hexdigest()
    return None


def _for_now(origin: Origin, shown: str) -> Held:
    """A place that goes with what is open."""
    folder = tempfile.mkdtemp(prefix="ggmlq-remote-")
    try:
        held = Held(f"{folder}/{DATA}", f"{folder}/{TABLE}", origin.size or 0, origin, shown)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(held, shutil.rmtree, folder, ignore_errors=True)
    return held


def entries() -> list[Entry]:
    """What is kept, that used last first."""
    found = []
    with contextlib.suppress(Refused, OSError):
        place = root()
        for folder in (place / HOME).iterdir() if place is not None else ():
            if NAME.fullmatch(folder.name):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    found.append(_entry(folder))
    return sorted(found, key=lambda entry: -entry.used)


def _entry(folder: Path) -> Entry:
    said = json.loads((folder / ABOUT).read_text())
    data = (folder / DATA).stat()
    there = getattr(data, "st_blocks", -(-data.st_size // 512)) * 512
    return Entry(str(said["address"]), data.st_size, there, (folder / ABOUT).stat().st_mtime, str(folder))


def empty() -> list[Entry]:
    """Remove all that is kept; what went."""
    gone = entries()
    for entry in gone:
        _remove(Path(entry.path))
    return gone


def forget(url: str, origin: Ranges) -> None:
    """Remove what is kept of one file; who has it open keeps it."""
    folder = _folder(url, origin.version, origin.size or 0)
    if folder is not None:
        _remove(folder)


def trim(mine: str = "") -> None:
    """Remove those that were not opened for longest, until the rest is within the limit."""
    said = os.environ.get("GGMLQ_REMOTE_BYTES", "")
    limit, total = int(said) if said.isdecimal() else LIMIT, 0
    for entry in entries():
        total += entry.there
        if total > limit and os.path.basename(entry.path) != mine:
            _remove(Path(entry.path))


def _remove(folder: Path) -> None:
    """Our files in it, and the folder if nothing else is there."""
    for name in (ABOUT, TABLE, DATA):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
