"""The cache of compiled code on the disk, for CPUs and GPUs, shared by processes.

In ``<place>/compiled`` each folder holds the code of one generation (of sources, compilers, a CPU);
each file is an entry: a digest of its name and content, then the content. ``GGMLQ_CACHE_DIR`` moves
the place; ``GGMLQ_CACHE_DIR=off`` does without. A place that cannot be used is done without, and
``ggmlq doctor`` says why.

Entries are run, so whoever can write one owns the process: only private folders count, from the place
down (``private.py``).
A folder that cannot be written to is still read. Only files that this module wrote are removed: files
with its endings in folders with its mark, and never a folder with anything else in it.

Files appear whole under their names, so any number of processes may share them, and a damaged one
is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from .private import PARTIAL, Folder, Refused, below

HOME = "compiled"  # within the place
MARK, MARK_TEXT = "ggmlq-compiled", b"Compiled code of ggmlq. It may be removed at any time.\n"
ENTRY = ".code"
GENERATIONS = 4  # folders of a kind that stay: other versions, environments or CPUs may share the place
GENERATION = re.compile(r"([a-z]+)-[0-9a-f]{20}")
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
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ggmlq"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ggmlq" / "Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is ignored, as the specification of XDG says: it would follow the current folder.
    return (Path(xdg) if os.path.isabs(xdg) else home / ".cache") / "ggmlq"


class Facts(NamedTuple):
    """The report on a generation for ``ggmlq doctor``."""

    path: str | None
    problem: str | None  # the reason why it is not used or, where there is a path, why nothing is added to it
    functions: int
    bytes: int


class Generation:
    """The folder of code of one kind for one set of sources, compilers and machine, named by their digest.

    ``digest()`` is called only where code can be stored, and may raise OSError.
    """

    def __init__(self, kind: str, digest: Callable[[], str]) -> None:
        self._path: Path | None = None  # <place>/compiled/<generation>
        self.problem: str | None = None
        place: Path | None = None
        try:
            place = root()
            if place is None:
                raise Refused("switched off by GGMLQ_CACHE_DIR")
            path = place / HOME / f"{kind}-{digest()}"
            assert GENERATION.fullmatch(path.name), path
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
        except (OSError, Refused):
            return None
        content = sealed[SEAL:]
        return content if _seal(entry, content) == sealed[:SEAL] else None

    def save(self, entry: str, content: bytes) -> None:
        """Write an entry, if the folder can be written to."""
        if self._path is not None:
            with contextlib.suppress(OSError, Refused), _opened(self._path) as folder:
                folder.write(entry + ENTRY, _seal(entry, content) + content)

    def examine(self) -> Facts:
        """A report on the place, the size and the problem of this generation."""
        if self._path is None:
            return Facts(None, self.problem, 0, 0)
        sizes = []
        with contextlib.suppress(OSError, Refused), _opened(self._path) as folder:
            sizes = [folder.facts(name).st_size for name in folder.names() if name.endswith(ENTRY)]
        return Facts(str(self._path), self.problem, len(sizes), sum(sizes))


def forget(home: Folder, current: str) -> None:
    """Remove the generations of this kind that were not used for longest."""
    generations = []
    for name in home.names():
        named = GENERATION.fullmatch(name)
        if named and current.startswith(f"{named[1]}-"):
            facts = home.facts(name)
            if stat.S_ISDIR(facts.st_mode):
                generations.append((name != current, facts.st_mtime, name))
    old = [name for is_other, _, name in sorted(generations) if is_other][: -(GENERATIONS - 1)]
    for name in old:
        with contextlib.suppress(OSError, Refused):
            _remove(home, name)


def _opened(path: Path) -> AbstractContextManager[Folder]:
    return below(path.parents[1], HOME, path.name)


def _ready(path: Path) -> str | None:
    """Make the folder of a generation and remove old ones; a sentence if nothing can be written to it."""
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
    if not os.access(path, os.W_OK):
        return "read only"
    with contextlib.suppress(OSError), below(path.parents[1], HOME) as home:
        forget(home, path.name)
    return None


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


def _remove(home: Folder, name: str) -> None:
    """Our files in a folder with our mark, and the folder if nothing else is in it."""
    with Folder(home.path / name, home) as folder:
        _check_mark(folder)
        for entry in folder.names():
            if entry.endswith((ENTRY, PARTIAL)):
                folder.remove(entry)
        if folder.names() == [MARK]:
            folder.remove(MARK)
            home.remove_folder(name)


def _check_mark(folder: Folder) -> None:
    with contextlib.suppress(OSError):
        if folder.read(MARK) == MARK_TEXT:
            return
    raise Refused(f"{folder.path} was not made by ggmlq: it has no file {MARK}")


def _seal(entry: str, content: bytes) -> bytes:
    """A digest of the content, keyed by the name, so that no entry passes for another."""
    key = hashlib.blake2b(entry.encode()).digest()
    return hashlib.blake2b(content, digest_size=SEAL, key=key).digest()
