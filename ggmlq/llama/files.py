"""The files of a ggml build: one library in older versions, else base, registry and backends.

Nothing of ggml is shipped. The user names a library file, a folder with libraries, a llama.cpp build folder
or an archive of its releases (or ``GGMLQ_LIBGGML`` holds such a name); without that an installed package that
brings a libggml is looked for, llama-cpp-python first.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from ..errors import MissingDependencyError

VARIABLE = "GGMLQ_LIBGGML"
HOW = (
    f"set {VARIABLE} to a libggml-base, a llama.cpp build folder or an archive of its releases "
    "(llama-b…-bin-ubuntu-x64, no compiler needed), or `pip install llama-cpp-python`"
)

# libggml-base.so, libggml-cpu-haswell.so.0.9, libggml.0.dylib, ggml-cuda.dll: group 1 is the part.
NAME = re.compile(r"(?:lib)?ggml(?:-([\w-]+))?(?:\.\d+)*\.(?:so|dylib|dll)(?:\.\d+)*$")

# Where builds of different years and systems put their libraries, below what the user named.
PLACES = ("", "bin", "lib", "lib64", "bin/Release", "bin/Debug", "ggml/src", "src")


@dataclass(frozen=True)
class Build:
    """The libraries of one build of ggml, by part: ``"base"``, ``"cpu"``, ``"cuda"`` …

    The part ``""`` is libggml itself: the registry of backends, or all of ggml in one file.
    """

    folder: Path
    parts: dict[str, Path]
    named: Path | None = None  # the file or folder that the user named

    @property
    def base(self) -> Path:
        """The file that has the types, tensors and encoders."""
        return self.parts.get("base") or self.parts[""]

    @property
    def backends(self) -> dict[str, Path]:
        """The files that hold one backend each."""
        return {part: path for part, path in self.parts.items() if part not in ("", "base")}


def locate(named: str | Path | None = None) -> Build:
    """The build that the user named, or the one that this machine has."""
    if named is None:
        named = os.environ.get(VARIABLE) or _llama_cpp_python() or _other_package()
    if named is None:
        raise MissingDependencyError(f"libggml: none found; {HOW}")
    path = Path(named).expanduser()
    if is_archive(path):
        path = unpacked(path)
    if path.is_file():
        return _beside_file(path)
    if not path.is_dir():
        raise MissingDependencyError(
            f"libggml: {path} is neither a file nor a folder; name a library or a build folder; {HOW}"
        )
    # An archive that was unpacked there has a folder of its own.
    inner = sorted(child for child in path.iterdir() if child.is_dir() and child.name != "build")
    for root in (path / "build", path, *inner):
        parts: dict[str, Path] = {}
        for place in PLACES:  # backends that load at run time may lie in bin, the rest in src
            parts = {**_parts(root / place), **parts}
        if "base" in parts or "" in parts:
            return Build((parts.get("base") or parts[""]).parent, parts, path)
    raise MissingDependencyError(
        f"libggml: {path} holds no libggml-base or libggml (looked in it and in "
        f"{', '.join(PLACES[1:])}, each also below build/); build ggml with "
        f"-DBUILD_SHARED_LIBS=ON and name that folder; {HOW}"
    )


def named_for_child(lib: str | Path | None) -> str | None:
    """The path that a child process locates; an archive is unpacked here, for a child may be ended."""
    named = lib if lib is not None else os.environ.get(VARIABLE)
    if named is not None and is_archive(path := Path(named).expanduser()):
        return str(unpacked(path))
    return None if lib is None else str(Path(lib).expanduser().absolute())


def _beside_file(path: Path) -> Build:
    """The build around a named file: the file itself, and the other parts that lie beside it."""
    match = NAME.match(path.name)
    if match is None:  # somebody's own name: then it must hold all of ggml
        return Build(path.parent, {"": path}, path)
    parts = {**_parts(path.parent), (match[1] or ""): path}
    if "base" not in parts and "" not in parts:
        raise MissingDependencyError(
            f"libggml: {path} is one backend, and {path.parent} holds no libggml-base; "
            "a backend needs it; name the folder that has both"
        )
    return Build(path.parent, parts, path)


def _parts(folder: Path) -> dict[str, Path]:
    """Libraries of a folder and of folders such as ``ggml-cuda`` in it, by part; the shortest name counts."""
    parts: dict[str, Path] = {}
    if not folder.is_dir():
        return parts
    inner = sorted(child for child in folder.glob("ggml-*") if child.is_dir())
    for place in (folder, *inner):
        for path in sorted(place.iterdir(), key=lambda p: (len(p.name), p.name)):
            match = NAME.match(path.name)
            if match is not None and path.is_file():
                parts.setdefault(match[1] or "", path)
    return parts


def _other_package() -> Path | None:
    """The folder of a libggml that any installed package brings."""
    from importlib import metadata  # slow to import, and few ask for it

    for package in metadata.distributions():
        for file in package.files or ():
            match = NAME.match(file.name)
            if match is not None and match[1] in (None, "base"):
                path = Path(str(file.locate()))
                if path.is_file():
                    return path.parent
    return None


def _llama_cpp_python() -> Path | None:
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent


# --- libraries out of an archive of releases, unpacked into a folder of this process --------------

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
