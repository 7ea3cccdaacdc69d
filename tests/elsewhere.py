"""A plugin of pytest's, ``-p elsewhere``: this process has what Windows has, as far as Linux can play it.

Modules, functions and flags of POSIX are gone, and nobody renames a file over one that is mapped. NumPy and
Numba, whose own builds differ there, are imported before.
"""

from __future__ import annotations

import concurrent.futures.process  # noqa: F401  # these look at the system when they are imported
import ctypes
import mmap
import multiprocessing.spawn  # noqa: F401
import os
import shutil
import signal
import subprocess
import sys
import tempfile  # noqa: F401
from types import SimpleNamespace

import hypothesis  # noqa: F401
import llvmlite.binding  # noqa: F401
import numba  # noqa: F401
import numpy as np  # noqa: F401
import pytest
import xdist.plugin  # noqa: F401  # which asks for load averages

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix_ipc")
FUNCTIONS = """copy_file_range fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
    getpgrp getpriority getsid getuid killpg lchown memfd_create mkfifo mknod nice posix_fadvise
    posix_fallocate posix_spawn pread preadv process_cpu_count pwrite pwritev register_at_fork
    sched_getaffinity sched_yield setpgid setsid statvfs sysconf uname wait3 wait4 waitid
    O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC"""
SIGNALS = """SIGALRM SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1
    alarm pthread_kill pthread_sigmask setitimer"""
PAGES = [name for name in dir(mmap) if name.startswith(("MADV_", "MAP_", "PROT_"))]

real_library, real_replace, real_statvfs = ctypes.CDLL, os.replace, os.statvfs


def _mapped(path: str) -> bool:
    with open("/proc/self/maps") as maps:
        return any(line.rstrip("\n").endswith(f" {os.path.realpath(path)}") for line in maps)


def _replace(old, new, *, src_dir_fd=None, dst_dir_fd=None):
    if src_dir_fd is not None or dst_dir_fd is not None:
        raise NotImplementedError("src_dir_fd and dst_dir_fd unavailable on this platform")
    if _mapped(os.fspath(new)):
        raise PermissionError(13, "Access is denied", os.fspath(new))
    real_replace(old, new)


def _usage(path):
    space = real_statvfs(path)
    return SimpleNamespace(free=space.f_bavail * space.f_frsize)


class _Library(real_library):
    def __init__(self, name, *args, **how):
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        super().__init__(name, *args, **how)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Play that system before anything of ggmlq is imported."""
    play()


def play():
    """Take away what Windows lacks."""
    for name in MODULES:
        sys.modules[name] = None
    subprocess.signal = SimpleNamespace(**vars(signal))  # its own build for Windows does without
    for module, names in ((os, FUNCTIONS.split()), (signal, SIGNALS.split()), (mmap, PAGES)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.supports_dir_fd, os.supports_follow_symlinks = set(), set()
    os.replace, ctypes.CDLL, shutil.disk_usage = _replace, _Library, _usage
    sys.platform = "win32"
