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
import platform
import queue
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from ..base import system
from ..base.progress import AFTER
from ..base.text import printable
from ..errors import GGUFOSError
from .source import Extent, Files

# --- one saver at a time ---------------------------------------------------------------------
# A lock on a folder while a save renames its files, so that two saves of one split model do not mix. The
# lock is the system's, on a file ``.ggmlq.lock`` that exists only meanwhile and names its holder; it ends
# with the process that holds it, however that ends. On Windows and file systems without locks there is
# none.

LOCK = ".ggmlq.lock"
PATIENCE = 60.0  # seconds: names change in milliseconds
LOOKS = 0.05  # seconds between two looks; waiting in the system could not end


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """A context that holds the lock of a folder."""
    path = os.path.join(folder, LOCK)
    fd = _acquired(path)
    try:
        yield
    finally:
        if fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)  # while it is held: who waits for this file sees that it is gone
            os.close(fd)


def _acquired(path: str) -> int | None:
    """A descriptor that holds the lock, or None where there are no locks."""
    if not system.LOCKS:
        return None
    _check_file(path)
    wait = _Wait(path)
    while True:
        try:
            fd = os.open(path, system.flags("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_NONBLOCK"), 0o666)
        except OSError:  # no permission: the renaming will tell
            return None
        try:
            system.lock(fd)
            if _is_at(path, fd):
                _sign(fd)
                return fd
        except BlockingIOError:
            holder = _holder(fd)
        except OSError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        else:
            holder = ""
        os.close(fd)
        if holder:  # else the one before has removed the file
            wait.once_more(holder)


def _check_file(path: str) -> None:
    """Refuse a lock file that is a link: opening it could make or empty a file elsewhere."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise GGUFOSError(
            f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no regular file'}; the lock of savers has that "
            "name, and nothing else may; remove it"
        )


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sign(fd: int) -> None:
    with contextlib.suppress(OSError):  # a full disk: only those who wait would read it
        os.ftruncate(fd, 0)
        system.write_at(fd, f"process {os.getpid()} on {platform.node()}".encode(), 0)


class _Wait:
    """The wait for another save: a line on a terminal if it takes long, and an error in the end."""

    def __init__(self, path: str) -> None:
        self._path, self._start, self._said = path, time.monotonic(), False

    def once_more(self, holder: str) -> None:
        passed = time.monotonic() - self._start
        if passed >= PATIENCE:
            raise GGUFOSError(
                f"{self._path} has been held for {passed:.0f} s by {holder}; sets of parts in a folder get "
                "their names one after the other; end that process, or save elsewhere"
            )
        if passed >= AFTER and not self._said and sys.stderr.isatty():
            self._said = True
            print(f"waiting for {printable(self._path)}, held by {holder}", file=sys.stderr)
        time.sleep(LOOKS)


def _holder(fd: int) -> str:
    """The text in the file about the program that holds the lock; anybody may have written it."""
    try:
        content = system.read_at(fd, 100, 0)
    except OSError:
        content = b""
    return printable(content.decode(errors="replace")).replace("\n", " ") or "another program"


# --- bytes to the disk -----------------------------------------------------------------------
# Writing to the disk starts while more bytes are written, so that the final fsync is short.

LEAST_RANGE = 1 << 20  # bytes that are worth a call


class Writeback:
    """A thread that starts the writing back of ranges of a file; ``with`` waits for it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0
        self._ranges: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def written(self, n: int) -> None:
        """Count bytes that were written to the file."""
        if n >= LEAST_RANGE and system.WRITES_BACK:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._ranges.put((self._at, n))
        self._at += n

    def _run(self) -> None:
        while (span := self._ranges.get()) is not None:
            system.write_back(self._fd, *span)

    def __enter__(self) -> Writeback:
        return self

    def __exit__(self, *error: object) -> None:
        self._ranges.put(None)
        if self._thread is not None:
            self._thread.join()


# --- files and their names -------------------------------------------------------------------

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
        fd = os.open(path, system.flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_BINARY"), 0o666)
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
            fd = os.open(path, system.flags("O_RDWR", "O_BINARY"))
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
            system.replace(self._temporary[0], self._finals[0])
        else:
            with locked(os.path.dirname(self._finals[0])):
                _replace_set(self._temporary, self._finals)
        self._temporary = []
        system.sync_folder(os.path.dirname(self._finals[0]))


def _replace_set(temporary: Sequence[str], finals: Sequence[str]) -> None:
    aside: list[tuple[str, str]] = []
    placed: list[str] = []
    try:
        for final in finals:
            if os.path.lexists(final):
                aside.append((_beside(final), final))  # noted first: an interrupt may come in between
                system.replace(final, aside[-1][0])
        for path, final in zip(reversed(temporary), reversed(finals), strict=True):
            placed.append(final)
            system.replace(path, final)
    except BaseException:
        for final in reversed(placed):
            _remove(final)
        for path, final in reversed(aside):
            with contextlib.suppress(OSError):  # the error to tell of is the first one
                system.replace(path, final)
        raise
    for path, _ in aside:
        _remove(path)


def _beside(final: str) -> str:
    return os.path.join(os.path.dirname(final), f".ggmlq-{os.urandom(8).hex()}.tmp")


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
