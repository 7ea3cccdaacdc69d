"""Libraries out of an archive of llama.cpp's releases, unpacked into a folder of this process's own."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from ..errors import MissingDependencyError

ENDS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
LIBRARY = re.compile(r"[\w.+-]+\.(?:so|dylib|dll)(?:\.\d+)*$")
MOST = 8 << 30  # bytes of an archive's libraries


class Member(NamedTuple):
    """A library in an archive: its bytes, or the name that it is a link to."""

    name: str
    size: int
    link: str | None
    open: Callable[[], IO[bytes] | None]


def is_archive(path: Path) -> bool:
    """True for a file that is named as an archive."""
    return path.name.lower().endswith(ENDS) and path.is_file()


def unpacked(path: Path) -> Path:
    """A folder with the libraries of an archive, which lasts as long as this process."""
    facts = path.stat()
    return _unpacked(path.resolve(), facts.st_mtime_ns, facts.st_size)


@functools.cache
def _unpacked(path: Path, mtime: int, size: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ggmlq-libraries-"))
    atexit.register(_remove, folder, os.getpid())
    try:
        count = _extract(path, folder)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise MissingDependencyError(
            f"--lib {path}: this archive cannot be read: {error}; download it again, or unpack it yourself "
            "and name the folder"
        ) from error
    if not count:
        raise MissingDependencyError(
            f"--lib {path}: this archive holds no libraries; take one of llama.cpp's releases whose name "
            "has 'bin' and your system in it (llama-b…-bin-ubuntu-x64)"
        )
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves its parent's folder alone
        shutil.rmtree(folder, ignore_errors=True)


def _extract(path: Path, folder: Path) -> int:
    """Write all libraries side by side, whatever folders they lie in; the number of them."""
    names, total = set[str](), 0
    with zipfile.ZipFile(path) if path.name.lower().endswith(".zip") else tarfile.open(path) as archive:
        every = _in_zip(archive) if isinstance(archive, zipfile.ZipFile) else _in_tar(archive)
        for member in every:
            if member.name in names:
                continue
            total += member.size
            if total > MOST:
                raise OSError(f"its libraries have more than {MOST >> 30} GiB")
            names.add(member.name)
            target = folder / member.name
            if member.link is not None:
                target.symlink_to(PurePosixPath(member.link).name)  # beside it, never elsewhere
                continue
            source = member.open()
            if source is not None:
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    return len(names)


def _in_zip(archive: zipfile.ZipFile) -> Iterator[Member]:
    for info in archive.infolist():
        name = PurePosixPath(info.filename).name
        if info.is_dir() or not LIBRARY.match(name):
            continue
        link = archive.read(info).decode(errors="replace") if stat.S_ISLNK(info.external_attr >> 16) else None
        yield Member(name, info.file_size, link, functools.partial(archive.open, info))


def _in_tar(archive: tarfile.TarFile) -> Iterator[Member]:
    for info in archive:
        name = PurePosixPath(info.name).name
        if (info.isfile() or info.issym()) and LIBRARY.match(name):
            link = info.linkname if info.issym() else None
            yield Member(name, info.size, link, functools.partial(archive.extractfile, info))
