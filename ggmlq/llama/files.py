"""The files of a ggml build: one library in older versions, else base, registry and backends.

Nothing of ggml is shipped. The user names a library file, a folder with libraries, a llama.cpp build folder
or an archive of its releases (or ``GGMLQ_LIBGGML`` holds such a name); without that an installed package that
brings a libggml is looked for, llama-cpp-python first.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingDependencyError
from .archives import is_archive, unpacked

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
    for root in (path / "build", path, *_children(path)):
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


def _children(path: Path) -> list[Path]:
    """Folders in a folder: an archive that was unpacked there has one of its own."""
    return sorted(child for child in path.iterdir() if child.is_dir() and child.name != "build")


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
    for package in importlib.metadata.distributions():
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
