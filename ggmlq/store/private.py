"""Folders that nobody but this user (or root) can write to, and whole files in them.

The cache's own folder is opened by its path, links included: the user chose it. Its owner and permissions
are checked. Everything below is opened relative to an open folder, never by a path, is no link, and is
checked too. So nobody can exchange a file or folder between the check and its use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ..base.system import flags, is_trusted, replace

PARTIAL = ".partial"  # the end of names of what is not whole yet
OTHERS = stat.S_IWGRP | stat.S_IWOTH
WAY = "set GGMLQ_CACHE_DIR to a folder of yours"
ATTEMPTS = 8  # to open a file that other processes remove and make


# Windows has neither owners nor files in opened folders; there the user's own place is private.
RELATIVE = {os.open, os.stat, os.mkdir, os.link, os.unlink, os.rename, os.rmdir} <= os.supports_dir_fd
FOLDER, BELOW = flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"), flags("O_NOFOLLOW")
FILE = flags("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")


class Refused(Exception):
    """The reason why a place is not used."""


class Folder:
    """A folder, open in a ``with`` block; ``Refused`` if others can write to it.

    ``above``: the open folder that it lies in; without one it is found by its path.
    """

    def __init__(self, path: Path, above: Folder | None = None) -> None:
        self.path, self._above = path, above
        self._opened: int | None = None

    def __enter__(self) -> Folder:
        if not RELATIVE:
            if self._above is not None and self.path.is_symlink():
                raise Refused(f"{self.path} is a link; remove it, or {WAY}")
            return self
        if self._above is None:
            self._opened = os.open(self.path, FOLDER)
        else:
            try:
                self._opened = os.open(self.path.name, FOLDER | BELOW, dir_fd=self._above._opened)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise Refused(f"{self.path} is no folder, or a link; remove it, or {WAY}") from None
                raise
        try:
            _trust(os.fstat(self._opened), self.path)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def names(self) -> list[str]:
        """The names of the folder's entries."""
        return os.listdir(self.path if self._opened is None else self._opened)

    def touch(self, name: str | None = None) -> None:
        """Mark the folder, or a file in it, as used now."""
        if name is None:
            os.utime(self.path if self._opened is None else self._opened)
        else:
            os.utime(self._at(name), dir_fd=self._opened, follow_symlinks=self._opened is None)

    def facts(self, name: str) -> os.stat_result:
        """The system's facts of a file or folder in it; those of a link, not of what it leads to."""
        return os.stat(self._at(name), dir_fd=self._opened, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """True where something has this name."""
        with contextlib.suppress(FileNotFoundError):
            return bool(self.facts(name))
        return False

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """The descriptor of a regular file that nobody else can have written."""
        try:
            file = os.open(self._at(name), flags | FILE, dir_fd=self._opened)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
                raise Refused(f"{self.path / name} is no file, or a link; remove it") from None
            raise
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise Refused(f"{self.path / name} is no file; remove it")
            if RELATIVE:
                _trust(facts, self.path / name)
        except BaseException:
            os.close(file)
            raise
        return file

    def read(self, name: str, most: int = -1) -> bytes:
        """The content of a file, which nobody else can have written, or its first bytes."""
        with open(self.open(name), "rb") as opened:
            return opened.read(most)

    def sized(self, name: str, size: int) -> int:
        """The descriptor of a file of this size, to read and write; a new one is all zeros.

        It has its size before it has its name, and no file that has one is ever cut: another process may
        have it open. One of another size loses its name.
        """
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                file = self.open(name, os.O_RDWR)
                if os.fstat(file).st_size == size:
                    return file
                os.close(file)
                self.remove(name)
            partial, file = self._new(name)
            try:
                os.ftruncate(file, size)
                self._name(partial, name)
            finally:
                os.close(file)
                with contextlib.suppress(OSError):
                    self.remove(partial)
        raise Refused(f"{self.path / name} was exchanged {ATTEMPTS} times while it was opened")

    def _name(self, partial: str, name: str) -> None:
        """Give a file its name, unless another process was first."""
        try:
            os.link(self._at(partial), self._at(name), src_dir_fd=self._opened, dst_dir_fd=self._opened)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            self.rename(partial, name)

    def write(self, name: str, content: bytes) -> None:
        """Make a file that appears whole, or not at all."""
        self.pour(name, (content,))

    def pour(self, name: str, parts: Iterable[Any], lasting: bool = False) -> None:
        """Make a file of its parts, one after the other, that appears whole, or not at all.

        ``lasting``: not before it is on the disk, so that it is whole even if the machine goes down.
        """
        partial, file = self._new(name)
        try:
            with open(file, "wb") as opened:
                opened.writelines(parts)
                if lasting:
                    opened.flush()
                    os.fsync(file)
            self.rename(partial, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(partial)
            raise

    def _new(self, name: str) -> tuple[str, int]:
        partial = f"{name}-{secrets.token_hex(4)}{PARTIAL}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE
        file = os.open(self._at(partial), flags, 0o600, dir_fd=self._opened)
        if RELATIVE:
            os.fchmod(file, 0o600)  # a umask can take away too much
        return partial, file

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name, which a file may lose by it."""
        replace(self._at(old), self._at(new), src_dir_fd=self._opened, dst_dir_fd=self._opened)

    def make(self, name: str) -> None:
        """Make a folder in this one, for this user alone, unless there is one of this name."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._at(name), 0o700, dir_fd=self._opened)
            os.chmod(self._at(name), 0o700, dir_fd=self._opened)  # a umask can take away too much

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self._at(name), dir_fd=self._opened)

    def remove(self, name: str) -> None:
        """Remove a file of the folder."""
        os.unlink(self._at(name), dir_fd=self._opened)

    def _at(self, name: str) -> str:
        return name if self._opened is not None else str(self.path / name)


@contextmanager
def below(place: Path, *names: str, new: bool = False) -> Iterator[Folder]:
    """The folder at some names below a place, each step opened and checked; ``new``: make missing ones."""
    if new:
        make(place)
    with ExitStack() as stack:
        folder = stack.enter_context(Folder(place))
        for name in names:
            if new:
                folder.make(name)
            folder = stack.enter_context(Folder(folder.path / name, folder))
        yield folder


def make(path: Path) -> None:
    """Make a folder and missing folders above it, for this user alone."""
    if not path.is_dir():
        make(path.parent)
        with contextlib.suppress(FileExistsError):  # another process was first, or it is a file
            path.mkdir(mode=0o700)


def _trust(facts: os.stat_result, path: Path) -> None:
    if not is_trusted(facts):
        raise Refused(f"{path} belongs to another user (uid {facts.st_uid}), who may change it; {WAY}")
    if facts.st_mode & OTHERS:
        mode = f"{stat.S_IMODE(facts.st_mode):04o}"
        raise Refused(f"{path} can be written to by others (mode {mode}); chmod go-w it, or {WAY}")
