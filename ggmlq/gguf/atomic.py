"""Atomic writing of GGUF files: a new file, or a set of parts, appears under its names in full or not at all.

Everything is written to temporary files in the same folder and synced. Only then names change.
One file is one rename. A set of parts cannot change in one step, so the order makes sure that no
mixture ever opens: the old first part is removed first, the new first part arrives last, and without
a first part no set opens. Where a step fails the old set is put back. A link under a name is
replaced; its target stays as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from types import TracebackType

from .extents import Extent, Files
from .lock import locked
from .writeback import Writeback

Chunk = bytes | memoryview | Extent


class Staging:
    """Temporary files beside their final names; gone again unless they are committed."""

    def __init__(self, finals: Sequence[str]) -> None:
        self._finals = list(finals)
        self._temporary: list[str] = []
        self._files = Files()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)
        for path in self._temporary:
            _remove(path)

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Write the next temporary file and sync it to the disk."""
        final = self._finals[len(self._temporary)]
        path = _beside(final)
        self._temporary.append(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(path, os.stat(final).st_mode & 0o7777)
            self._write_all(fd, chunks)
            os.fsync(fd)
        finally:
            os.close(fd)

    def reserve(self, head: bytes, nbytes: int) -> str:
        """Make the next temporary file in full size, with its beginning and zeros that others write over."""
        self.write([head])
        os.truncate(self._temporary[-1], nbytes)
        return self._temporary[-1]

    def sync(self) -> None:
        """Sync reserved files to the disk."""
        for path in self._temporary:
            fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _write_all(self, fd: int, chunks: Iterable[Chunk]) -> None:
        with Writeback(fd) as writeback:
            for chunk in chunks:
                done = self._files.copy(chunk, fd) if isinstance(chunk, Extent) else 0
                rest = chunk.data[done:] if isinstance(chunk, Extent) else memoryview(chunk)
                size = done + len(rest)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                writeback.written(size)

    def commit(self) -> None:
        """Give all files their names."""
        if len(self._finals) == 1:
            os.replace(self._temporary[0], self._finals[0])
        else:
            with locked(os.path.dirname(self._finals[0])):
                _replace_set(self._temporary, self._finals)
        self._temporary = []
        _sync_folder(os.path.dirname(self._finals[0]))


def _replace_set(temporary: Sequence[str], finals: Sequence[str]) -> None:
    aside: list[tuple[str, str]] = []
    placed: list[str] = []
    try:
        for final in finals:
            if os.path.lexists(final):
                aside.append((_beside(final), final))  # noted first: an interrupt may come in between
                os.replace(final, aside[-1][0])
        for path, final in zip(reversed(temporary), reversed(finals), strict=True):
            placed.append(final)
            os.replace(path, final)
    except BaseException:
        for final in reversed(placed):
            _remove(final)
        for path, final in reversed(aside):
            with contextlib.suppress(OSError):  # the error to tell of is the first one
                os.replace(path, final)
        raise
    for path, _ in aside:
        _remove(path)


def _beside(final: str) -> str:
    return os.path.join(os.path.dirname(final), f".ggmlq-{os.urandom(8).hex()}.tmp")


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _sync_folder(folder: str) -> None:
    """Sync the folder, so that new names last; errors are ignored, since the names have changed already."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    with contextlib.suppress(OSError):  # some network file systems cannot
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
