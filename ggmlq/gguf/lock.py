"""A lock on a folder while a save renames its files, so that two saves of one split model do not mix.

The lock is the system's, on a file ``.ggmlq.lock`` that exists only meanwhile and names its holder; it ends
with the process that holds it, however that ends. On Windows and file systems without locks there is none.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator

from ..base.progress import AFTER
from ..base.text import printable
from ..errors import GGUFOSError

if sys.platform != "win32":
    import fcntl

NAME = ".ggmlq.lock"
PATIENCE = 60.0  # seconds: names change in milliseconds
LOOKS = 0.05  # seconds between two looks; waiting in the system could not end


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """A context that holds the lock of a folder."""
    path = os.path.join(folder, NAME)
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
    if sys.platform == "win32":
        return None
    _check_file(path)
    wait = _Wait(path)
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError:  # no permission: the renaming will tell
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)


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
        content = os.pread(fd, 100, 0)
    except OSError:
        content = b""
    return printable(content.decode(errors="replace")).replace("\n", " ") or "another program"
