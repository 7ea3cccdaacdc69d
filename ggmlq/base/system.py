"""Answers to what operating systems do differently, one each: no other file asks which system this is.

Windows has no owners of files, no signals to groups of processes, no functions of the C library by name, and
lets nobody rename a file over one that is mapped. macOS counts memory in other units and has no ``/proc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

WINDOWS, MACOS, LINUX = (sys.platform == name for name in ("win32", "darwin", "linux"))
MACHINE = platform.machine()  # "x86_64", on Windows "AMD64"; "aarch64", on macOS "arm64"
WIDE = sys.maxsize > 1 << 32  # a program of 64 bits
LOCKS = not WINDOWS  # a process may hold a file
WRITES_BACK = hasattr(os, "posix_fadvise")  # the system takes advice to write a range of a file
CUDA = "nvcuda.dll" if WINDOWS else "libcuda.so.1"  # the driver's library
FILES, MEMORY, CPU = Path("/proc/self/maps"), Path("/proc/meminfo"), Path("/proc/cpuinfo")  # on Linux
RETRIES, PAUSE = 20, 0.05  # of a renaming on Windows: virus scanners hold new files for a moment


def c_library(**how: Any) -> Any:
    """The functions of the C library; an OSError on Windows, which has them not by name."""
    if WINDOWS:
        raise OSError("Windows has no C library that is part of each process")
    return ctypes.CDLL(None, **how)


# --- processes -------------------------------------------------------------------------------------


def cores() -> int:
    """The cores of this process's affinity, where the system has one."""
    usable = getattr(os, "process_cpu_count", None)  # from Python 3.13; it also knows -X cpu_count
    affinity = getattr(os, "sched_getaffinity", None)
    return (usable() if usable else len(affinity(0)) if affinity else os.cpu_count()) or 1


def at_fork(**calls: Callable[[], object]) -> None:
    """Call functions around each fork, where processes fork: before, after_in_parent, after_in_child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread; processes that are started meanwhile inherit that. Not on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_group(process: Any) -> None:
    """Kill a process that leads a group, and all of the group; on Windows the process alone."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # what macOS says of a dead group
        os.killpg(process.pid, signal.SIGKILL)


def end_group() -> None:
    """End this process, and its group if it leads one."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def wake_when_orphaned() -> None:
    """Have Linux wake this process when its parent ends: a library may have stopped it.

    Linux sends this signal also when the thread ends that started us. It must therefore be one that
    does no harm.
    """
    if LINUX:
        c_library().prctl(1, signal.SIGCONT)  # PR_SET_PDEATHSIG


def hidden(number: int) -> int:
    """A high duplicate of a descriptor, closed in the programs that a library starts."""
    with contextlib.suppress(ImportError):
        fcntl: Any = importlib.import_module("fcntl")
        for least in (900, 200, 50):  # limits of 1024 and 256 are usual
            with contextlib.suppress(OSError):
                return int(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least))
    return os.dup(number)


def mapped() -> list[Path]:
    """Paths of the files that are mapped in this process, sorted; none where the system does not say."""
    if not FILES.exists():
        return []
    fields = (line.split(maxsplit=5) for line in FILES.read_text(errors="replace").splitlines())
    return sorted({Path(line[5].removesuffix(" (deleted)")) for line in fields if len(line) == 6})


# --- the machine -----------------------------------------------------------------------------------


@cache
def cpu_model() -> str | None:
    """The maker's name of this CPU, where Linux knows it: LLVM's name can be that of a lesser one."""
    with contextlib.suppress(OSError), open(CPU, encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return None


def free_memory() -> int | None:
    """Bytes of memory that are free; None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def peak_memory() -> int | None:
    """The most bytes of memory that this process has had at a time; None where the system tells none."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if MACOS else 1024)


def page_out(area: mmap.mmap, start: int, length: int) -> None:
    """Unmap pages that were read; touched again, they come back from the file."""
    if hasattr(mmap, "MADV_DONTNEED"):
        area.madvise(mmap.MADV_DONTNEED, start, length)


# --- files -----------------------------------------------------------------------------------------


def flags(*names: str) -> int:
    """The flags of ``os.open`` that this system has, combined."""
    return sum(getattr(os, name, 0) for name in names)


_place = threading.Lock()  # of descriptors, where reading moves it


def read_at(fd: int, n: int, at: int) -> bytes:
    """Up to n bytes of a file from a place on, for any thread."""
    if hasattr(os, "pread"):
        return os.pread(fd, n, at)
    with _place:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, n)


def write_at(fd: int, data: Any, at: int) -> int:
    """Write bytes at a place of a file; the number that were written. For any thread."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, at)
    with _place:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)


def lock(fd: int) -> None:
    """Hold a file alone until it is closed, where there are LOCKS; BlockingIOError if another holds it."""
    fcntl: Any = importlib.import_module("fcntl")
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def replace(old: str | os.PathLike[str], new: str | os.PathLike[str], **folders: int | None) -> None:
    """Rename a file over another one, which goes; ``folders``: open ones that the names are in.

    Windows refuses while any program has that one open, also as a map. A moment's hold is waited for.
    """
    for left in reversed(range(RETRIES)):
        try:
            os.replace(old, new, **folders)
            return
        except PermissionError as error:
            if not WINDOWS:
                raise
            if not left:
                raise PermissionError(
                    error.errno, "Windows renames nothing over a file that is open; close it and the arrays "
                    "on it (del), or write under another name", os.fspath(new),
                ) from error  # fmt: skip
        time.sleep(PAUSE)


def sync_folder(folder: str) -> None:
    """Sync a folder, so that new names last; errors are ignored, since the names have changed already."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):  # some network file systems cannot
            fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def write_back(fd: int, start: int, length: int) -> None:
    """Begin to write a range of a file to the disk, where the system WRITES_BACK."""
    with contextlib.suppress(OSError):  # only advice: fsync reports what goes wrong
        # Linux starts to write back dirty pages of the range, and drops only clean ones.
        os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)


def grow(fd: int, length: int) -> None:
    """Let a file grow; where the system can, its room is taken now, so that none is missing later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, length)
    else:
        os.ftruncate(fd, length)


def room(folder: str | os.PathLike[str]) -> int:
    """Bytes that this user may still write on the disk of a folder; a large number where nobody knows."""
    try:
        if not hasattr(os, "statvfs"):
            return shutil.disk_usage(folder).free
        space = os.statvfs(folder)
    except OSError:  # what is wrong with the folder shows when a file is made
        return sys.maxsize
    free = space.f_bavail if os.geteuid() else space.f_bfree
    return free * space.f_frsize if space.f_blocks else sys.maxsize  # some systems do not say


def is_trusted(facts: os.stat_result) -> bool:
    """True for a file that belongs to this user or to root; Windows has no owners in these facts."""
    return not hasattr(os, "geteuid") or facts.st_uid in (os.geteuid(), 0)


def caches(home: Path) -> Path:
    """The folder for caches of programs under a user's home."""
    if MACOS:
        return home / "Library" / "Caches" / "ggmlq"
    if WINDOWS:
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ggmlq" / "Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is ignored, as the specification of XDG says: it would follow the current folder.
    return (Path(xdg) if os.path.isabs(xdg) else home / ".cache") / "ggmlq"
