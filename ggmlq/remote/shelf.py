"""The shelf: the cache on disk of remote files with holes, its size limit and its cleaning.

In ``<cache>/remote`` each file has a folder, named by a digest of its address, version and length. So bytes
of two versions of a file never mix. If a server names no version, nothing is kept longer than the process.
When all folders take more than LIMIT, those that were not opened for longest are removed. A process that has
a file open keeps it until it closes it. Nothing is kept either if other users can write to the cache: whoever
may rename a folder there could choose where we write.
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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from ..base.progress import say_once
from ..errors import RemoteError
from ..store.disk import root
from ..store.private import PARTIAL, Folder, Refused, below
from .held import DATA, TABLE, Held, Origin
from .ranges import Ranges

HOME = "remote"  # within the cache
NAME = re.compile(r"[0-9a-f]{40}")
ABOUT = "about.json"
OURS = {DATA, TABLE, ABOUT}
ATTEMPTS = 5  # to open a folder that others empty
LIMIT = 64 << 30  # bytes on the disk, unless GGMLQ_REMOTE_BYTES says otherwise


class Entry(NamedTuple):
    """A remote file on the shelf."""

    address: str
    size: int  # of the file
    there: int  # bytes of it on this disk
    used: float  # when it was opened last, as time.time()
    path: str  # the folder


def hold(url: str, shown: str, origin: Origin, version: str | None) -> Held:
    """Open the file with holes for a remote file: from the shelf, or a new one."""
    assert origin.size is not None
    if version is None:
        return _for_now(origin, shown)
    about = json.dumps({"address": shown, "version": version, "size": origin.size}).encode()
    try:
        place = root()
        for _ in range(ATTEMPTS):
            if place is None:
                break
            held = _stored(
                below(place, HOME, _name(url, version, origin.size), new=True), about, origin, shown
            )
            if held is not None:
                return held
    except (Refused, OSError) as error:
        if isinstance(error, RemoteError):
            raise
        say_once(f"{error}; what is fetched is kept as long as this process has it open")
    return _for_now(origin, shown)


def _stored(place: AbstractContextManager[Folder], about: bytes, origin: Origin, shown: str) -> Held | None:
    """The files of a folder; None if somebody emptied it meanwhile, so that they would have no names."""
    with contextlib.suppress(FileNotFoundError), place as folder:
        held = Held(folder, origin.size or 0, origin, shown)
        folder.write(ABOUT, about)  # its time tells when it was opened
        if held.is_in(folder):
            trim(folder.path.name)
            return held
        held.close()
    return None


def _name(url: str, version: str, size: int) -> str:
    return hashlib.blake2b(f"{url}\n{version}\n{size}".encode(), digest_size=20).hexdigest()


def _for_now(origin: Origin, shown: str) -> Held:
    """A file with holes in a temporary folder, which is removed with it."""
    path = ""
    try:
        path = tempfile.mkdtemp(prefix="ggmlq-remote-")
        with Folder(Path(path)) as folder:
            held = Held(folder, origin.size or 0, origin, shown)
    except BaseException as error:
        if path:
            shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, Refused | OSError) and not isinstance(error, RemoteError):
            raise RemoteError(
                f"{shown}: there is no place for what is fetched: {error}; set TMPDIR to a folder of yours, "
                "or GGMLQ_CACHE_DIR"
            ) from error
        raise
    weakref.finalize(held, shutil.rmtree, path, ignore_errors=True)
    return held


def entries() -> list[Entry]:
    """The files on the shelf, the last used first."""
    files = []
    with contextlib.suppress(Refused, OSError), _shelf() as shelf:
        for name in filter(NAME.fullmatch, shelf.names()):
            with contextlib.suppress(Refused, OSError), Folder(shelf.path / name, shelf) as folder:
                files.append(_entry(folder))
    return sorted(files, key=lambda entry: -entry.used)


def problem() -> str | None:
    """The reason why nothing is stored, in words, or None."""
    try:
        with _shelf():
            return None
    except FileNotFoundError:  # nothing was fetched yet
        return None
    except (Refused, OSError) as error:
        return str(error)


def _shelf() -> AbstractContextManager[Folder]:
    place = root()
    if place is None:
        raise Refused("switched off by GGMLQ_CACHE_DIR")
    return below(place, HOME)


def _entry(folder: Folder) -> Entry:
    """A folder; one that was half made or half removed is listed too, so that it goes like others."""
    address, size, there, used = "?", 0, 0, folder.facts(".").st_mtime
    with contextlib.suppress(Refused, OSError, ValueError, KeyError, TypeError):
        address = str(json.loads(folder.read(ABOUT))["address"])
        used = folder.facts(ABOUT).st_mtime
    with contextlib.suppress(OSError):
        data = folder.facts(DATA)
        size, there = data.st_size, getattr(data, "st_blocks", -(-data.st_size // 512)) * 512
    return Entry(address, size, there, used, str(folder.path))


def empty() -> list[Entry]:
    """Remove all files from the shelf; returns the removed entries."""
    removed = entries()
    for entry in removed:
        _remove(os.path.basename(entry.path))
    return removed


def forget(url: str, origin: Ranges) -> None:
    """Remove one file from the shelf; processes that have it open keep it."""
    if origin.version is not None:
        _remove(_name(url, origin.version, origin.size or 0))


def trim(current: str = "") -> None:
    """Remove the files that were not opened for longest, until the rest is within the limit.

    The folder named ``current`` stays.
    """
    limit_text = os.environ.get("GGMLQ_REMOTE_BYTES", "")
    limit, total = int(limit_text) if limit_text.isdecimal() else LIMIT, 0
    for entry in entries():
        total += entry.there
        name = os.path.basename(entry.path)
        if total > limit and name != current:
            _remove(name)


def _remove(name: str) -> None:
    """Our files in a folder, and the folder if nothing else is there."""
    with contextlib.suppress(Refused, OSError), _shelf() as shelf:
        with Folder(shelf.path / name, shelf) as folder:
            ours = [part for part in folder.names() if part in OURS or part.endswith(PARTIAL)]
            for part in ours:
                with contextlib.suppress(OSError):
                    folder.remove(part)
        shelf.remove_folder(name)
