"""Folders that nobody but this user (or root) can write to, and whole files in them.

A folder is opened, not followed if it is a link, and asked who owns it; files are opened in what was
opened, not by a path, and asked too. So nothing can be exchanged between the question and the use.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType

PARTIAL = ".partial"  # the end of names of what is not whole yet
OTHERS = stat.S_IWGRP | stat.S_IWOTH


def _flags(*names: str) -> int:
    """Those of them that this system has, together."""
    return sum(getattr(os, name, 0) for name in names)


# Windows has neither owners nor files in opened folders; there the user's own place is private.
RELATIVE = {os.open, os.unlink, os.rename} <= os.supports_dir_fd
FOLDER = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
FILE = _flags("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")


class Refused(Exception):
    """A place that is done without, and why."""


class Folder:
    """A folder, open in a ``with``; ``Refused`` if others can write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: int | None = None

    def __enter__(self) -> Folder:
        if RELATIVE:
            self._opened = os.open(self.path, FOLDER)
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

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.path if self._opened is None else self._opened)

    def touch(self) -> None:
        """Say that it is used."""
        os.utime(self.path if self._opened is None else self._opened)

    def read(self, name: str) -> bytes:
        """The content of a file, which nobody else can have written."""
        file = os.open(self._at(name), os.O_RDONLY | FILE, dir_fd=self._opened)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise Refused(f"{self.path / name} is no file")
            if RELATIVE:
                _trust(facts, self.path / name)
            with open(file, "rb", closefd=False) as opened:
                return opened.read()
        finally:
            os.close(file)

    def write(self, name: str, content: bytes) -> None:
        """Make a file that appears whole, or not at all."""
        partial = self._at(f"{name}-{secrets.token_hex(4)}{PARTIAL}")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o600, dir_fd=self._opened)
        try:
            with open(file, "wb") as opened:
                opened.write(content)
            os.replace(partial, self._at(name), src_dir_fd=self._opened, dst_dir_fd=self._opened)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=self._opened)
            raise

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._at(name), dir_fd=self._opened)

    def _at(self, name: str) -> str:
        return name if self._opened is not None else str(self.path / name)


def make(path: Path) -> None:
    """A folder, and those above it, for this user alone where they are not there yet."""
    if not path.is_dir():
        make(path.parent)
        with contextlib.suppress(FileExistsError):  # another process was first, or it is a file
            path.mkdir(mode=0o700)


def _trust(facts: os.stat_result, path: Path) -> None:
    if facts.st_uid not in (os.geteuid(), 0):
        raise Refused(f"{path} belongs to another user (uid {facts.st_uid})")
    if facts.st_mode & OTHERS:
        mode = f"{stat.S_IMODE(facts.st_mode):04o}"
        raise Refused(f"{path} can be written to by others (mode {mode}); chmod go-w")
