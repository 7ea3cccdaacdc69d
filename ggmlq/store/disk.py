"""Code that was compiled on this machine, on the user's disk, shared by processes.

``<place>/compiled/kernels`` holds an entry for each key (store.py): a digest of its name and content, then
the content. ``GGMLQ_CACHE_DIR`` moves the place; ``GGMLQ_CACHE_DIR=off`` does without. A place that cannot
be used is done without, and ``ggmlq doctor`` says why. Where the entries take more than half a gigabyte,
those that were not used for longest are removed.

Entries are run, so whoever can write one owns the process: only private folders count, from the place
down (``private.py``).
A folder that cannot be written to is still read. Only files that this module wrote are removed: files
with its endings in folders with its mark, and never a folder with anything else in it.

Files appear whole under their names, so any number of processes may share them, and a damaged one
is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..base.system import caches
from .private import PARTIAL, Folder, Refused, below

HOME, KERNELS = "compiled", "kernels"  # within the place
MARK, MARK_TEXT = "ggmlq-compiled", b"Compiled code of ggmlq. It may be removed at any time.\n"
ENTRY = ".code"
OURS = re.compile(rf".*{re.escape(ENTRY)}(-[0-9a-f]+{re.escape(PARTIAL)})?")  # also one left half written
MOST = 1 << 29  # bytes of all entries
DAY = 86400  # seconds: how exactly the time of an entry's last use is known
SEAL = 16  # bytes of the digest before the content of an entry


def root() -> Path | None:
    """The folder of the cache; None where it is switched off; ``Refused`` where none can be used."""
    variable = os.environ.get("GGMLQ_CACHE_DIR", "")
    if variable.lower() in ("off", "0", "none"):
        return None
    try:
        if variable:
            return Path(variable).expanduser().absolute()
        home = Path.home()
    except (RuntimeError, OSError) as error:  # no such ~user, no home, no current folder
        raise Refused(f"{variable or 'the home folder'} is not known: {error}") from None
    if not home.is_absolute():
        raise Refused(f"the home folder {str(home)!r} is relative")
    return caches(home)


class Facts(NamedTuple):
    """The report on the entries for ``ggmlq doctor`` and ``ggmlq cache``."""

    path: str | None
    problem: str | None  # the reason why it is not used or, where there is a path, why nothing is added to it
    kernels: int
    bytes: int


class Disk:
    """The folder of entries in a place."""

    def __init__(self, place: Path | None) -> None:
        self._path: Path | None = None
        self.problem: str | None = None
        try:
            if place is None:
                raise Refused("switched off by GGMLQ_CACHE_DIR")
            path = place / HOME / KERNELS
            self.problem = _ready(path)
            self._path = path
        except Refused as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{place} cannot be used: {error.strerror or error}"

    def load(self, entry: str) -> bytes | None:
        """The content of an entry; None where there is none, or one that is damaged or not to be trusted."""
        if self._path is None:
            return None
        try:
            with _opened(self._path) as folder:
                sealed = folder.read(entry + ENTRY)
                if folder.facts(entry + ENTRY).st_mtime < time.time() - DAY:
                    with contextlib.suppress(OSError):
                        folder.touch(entry + ENTRY)
        except (OSError, Refused):
            return None
        content = sealed[SEAL:]
        return content if _seal(entry, content) == sealed[:SEAL] else None

    def save(self, entry: str, content: bytes) -> None:
        """Write an entry, if the folder can be written to."""
        if self._path is not None:
            with contextlib.suppress(OSError, Refused), _opened(self._path) as folder:
                folder.write(entry + ENTRY, _seal(entry, content) + content)
                _trim(folder)

    def examine(self) -> Facts:
        """A report on the place, the entries and the problem of this folder."""
        if self._path is None:
            return Facts(None, self.problem, 0, 0)
        entries: list[tuple[str, os.stat_result]] = []
        with contextlib.suppress(OSError, Refused), _opened(self._path) as folder:
            entries = _entries(folder)
        whole = sum(name.endswith(ENTRY) for name, _ in entries)
        return Facts(str(self._path), self.problem, whole, sum(facts.st_size for _, facts in entries))

    def empty(self) -> None:
        """Remove all entries of the folder."""
        if self._path is not None:
            with contextlib.suppress(OSError, Refused), _opened(self._path) as folder:
                for name, _ in _entries(folder):
                    folder.remove(name)


def here() -> Disk:
    """The folder of this process's environment."""
    try:
        return _disk(root())
    except Refused as error:
        return _refused(str(error))


@cache
def _disk(place: Path | None) -> Disk:
    return Disk(place)


def _refused(problem: str) -> Disk:
    disk = Disk(None)
    disk.problem = problem
    return disk


def _entries(folder: Folder) -> list[tuple[str, os.stat_result]]:
    """Names and facts of all entries, half-written ones too, the one that was not used for longest first."""
    entries = []
    for name in folder.names():
        if OURS.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                entries.append((name, folder.facts(name)))
    return sorted(entries, key=lambda entry: entry[1].st_mtime)


def _trim(folder: Folder) -> None:
    """Remove the entries that were not used for longest, where all take too much."""
    entries = _entries(folder)
    size = sum(facts.st_size for _, facts in entries)
    for name, facts in entries[:-1]:
        if size <= MOST:
            break
        with contextlib.suppress(FileNotFoundError):
            folder.remove(name)
        size -= facts.st_size


def _opened(path: Path) -> AbstractContextManager[Folder]:
    return below(path.parents[1], HOME, path.name)


def _ready(path: Path) -> str | None:
    """Create the folder if it is not there; a sentence if nothing can be written to it."""
    try:
        with below(path.parents[1], HOME, new=True) as home:
            if not home.has(path.name):
                _create(home, path.name)
    except OSError:
        if not path.is_dir():
            raise
    with _opened(path) as folder:
        _check_mark(folder)
        try:
            folder.touch()
        except OSError as error:
            return f"read only: {error.strerror}"
    return None if os.access(path, os.W_OK) else "read only"


def _create(home: Folder, name: str) -> None:
    """A folder that has its mark from the first moment on; another process may make it before this one."""
    partial = f"{name}-{secrets.token_hex(4)}{PARTIAL}"
    home.make(partial)
    try:
        with Folder(home.path / partial, home) as folder:
            folder.write(MARK, MARK_TEXT)
        home.rename(partial, name)
    except OSError:
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError), Folder(home.path / partial, home) as folder:
                folder.remove(MARK)
            home.remove_folder(partial)
        if not home.has(name):
            raise


def _check_mark(folder: Folder) -> None:
    with contextlib.suppress(OSError):
        if folder.read(MARK) == MARK_TEXT:
            return
    raise Refused(f"{folder.path} was not made by ggmlq: it has no file {MARK}")


def _seal(entry: str, content: bytes) -> bytes:
    """A digest of the content, keyed by the name, so that no entry passes for another."""
    key = hashlib.blake2b(entry.encode()).digest()
    return hashlib.blake2b(content, digest_size=SEAL, key=key).digest()
