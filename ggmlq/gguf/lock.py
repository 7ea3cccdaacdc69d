"""One set of parts at a time gets its names in a folder, so that two savers of one name do not mix.

The lock is the system's, on a file ``.ggmlq.lock`` that is there only meanwhile; it ends with the
process that holds it, however that ends. Windows and file systems without locks do without.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

if sys.platform != "win32":
    import fcntl

NAME = ".ggmlq.lock"


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder."""
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
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # no permission: the renaming will tell
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                return fd
        except OSError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the one before has removed the file


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
