"""Checks of the path and the disk space of a new file, before a byte is written."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable

from ..base.text import size
from ..errors import GGUFOSError

MOST_LINKS = 40  # that lead to each other: as many as Linux follows
DEVICES = ("/dev", "/proc")  # links here are devices in disguise: /dev/stdout is whatever a shell made it


def check(path: str) -> None:
    """Refuse a path unless nothing is there, a regular file that may be written to, or an ordinary link.

    A save replaces the link itself; the file that it leads to stays as it is.
    """
    if not os.path.basename(path):
        raise GGUFOSError(f"{path!r} names no file; add a file name such as model.gguf")
    if _is_device(path):
        raise GGUFOSError(f"{path} stands for a device, and a save would replace it; name a file")
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing there, or a link to nothing; what hinders the writing shows then
        return
    if stat.S_ISDIR(mode):
        raise GGUFOSError(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise GGUFOSError(f"{path} is not a regular file, and a save would replace it; name another file")
    # An administrator may write to any file; still refuse, since somebody took the permission away.
    if not mode & 0o222 or not _is_writable(path):
        raise GGUFOSError(
            f"{path} is there and read-only (mode {stat.S_IMODE(mode):04o}); a save would replace it; allow "
            f"writing (chmod u+w), or name another file"
        )


def _is_writable(path: str) -> bool:
    """True if the system opens the file for writing, or if another save has just put it aside.

    ``os.access`` has the same answer for a file that is gone as for one that is read-only.
    """
    try:
        os.close(os.open(path, os.O_WRONLY))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_device(path: str) -> bool:
    """True where links lead through the folders in which the system lists devices and open files."""
    for _ in range(MOST_LINKS):
        if not os.path.islink(path):
            return False
        folder = os.path.realpath(os.path.dirname(path) or ".")
        if folder in DEVICES or folder.startswith(("/dev/fd", "/proc/")):
            return True
        path = os.path.join(folder, os.readlink(path))
    return False


def check_room(files: Iterable[tuple[str, int]]) -> None:
    """Refuse files that do not fit beside the old ones, which stay until the new ones are whole.

    The system states its free space. Nothing is reserved, because ``posix_fallocate`` writes all bytes on
    some file systems.
    """
    if not hasattr(os, "statvfs"):  # Windows
        return
    needed: Counter[str] = Counter()
    for path, nbytes in files:
        needed[os.path.dirname(path) or "."] += nbytes
    for folder, nbytes in needed.items():
        free = _free(folder)
        if nbytes > free:
            raise GGUFOSError(
                f"{folder}: the disk has {size(free)} free, the new file needs {size(nbytes)}, beside what "
                "it may replace; make room, or save to another disk"
            )


def _free(folder: str) -> int:
    """Bytes that this user may still write."""
    try:
        space = os.statvfs(folder)
    except OSError:  # what is wrong with the folder shows when the file is made
        return sys.maxsize
    free = space.f_bavail if os.geteuid() else space.f_bfree
    return free * space.f_frsize if space.f_blocks else sys.maxsize  # some systems do not say
