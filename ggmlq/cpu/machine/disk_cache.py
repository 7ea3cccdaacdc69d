"""Compiled code on the disk, one folder for all that it depends on.

Numba's own cache looks at the file of a function only, and would run old code after a change to a
function that it calls. Here a folder stands for a digest of every source file that compiled code
can come from, of the versions of Numba and Python, and of the CPU that is compiled for; an entry
in it stands for a function with all its constants.

A place that cannot be written to is done without. Files appear whole under their names, so any
number of processes may share them, and a damaged one is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl

from ...cache import root
from .features import compiled_for, cpu_name

SOURCES = ("cpu", "formats")  # of the package: what compiled code comes from
GENERATIONS = 4  # folders that stay: other versions, environments or CPUs may share the place
SEAL = 16  # bytes of the digest before the content of a file


class Folder:
    """Where the code for this process's sources and CPU lies."""

    def __init__(self, path: Path | None, problem: str = "") -> None:
        self.path, self.problem = path, problem

    def load(self, entry: str, context: Any) -> Any:
        """A compiled function, or None."""
        if self.path is None:
            return None
        try:
            sealed = (self.path / entry).read_bytes()
            if _seal(sealed[SEAL:]) != sealed[:SEAL]:
                return None
            context.refresh()
            return _serial().rebuild(context, pickle.loads(sealed[SEAL:]))
        except Exception:  # not there, cut off, of another make: the function can be compiled again
            return None

    def save(self, entry: str, result: Any) -> None:
        """Keep a compiled function, if it can be kept."""
        if self.path is None or result.lifted or result.library.has_dynamic_globals:
            return
        content = pickle.dumps(_serial().reduce(result), pickle.HIGHEST_PROTOCOL)
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
            try:
                file.write(_seal(content) + content)
                file.close()
                os.replace(file.name, self.path / entry)
            except OSError:
                os.unlink(file.name)
                raise


@cache
def folder() -> Folder:
    """The folder of this process; made, and old ones removed, when first asked for."""
    place = root()
    if place is None:
        return Folder(None, "switched off by GGMLQ_CACHE_DIR")
    path = place / _key()
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        return Folder(None, f"{path} cannot be written to: {error.strerror}")
    _forget(place, path)
    return Folder(path)


def examine() -> dict[str, Any]:
    """Where compiled code is kept, and how much of it."""
    kept = folder()
    if kept.path is None:
        return {"path": None, "problem": kept.problem, "functions": 0, "bytes": 0}
    files = [file.stat().st_size for file in kept.path.iterdir()]
    return {"path": str(kept.path), "problem": None, "functions": len(files), "bytes": sum(files)}


def _key() -> str:
    digest = hashlib.blake2b(digest_size=10)
    package = Path(__file__).parents[2]
    for folder_name in SOURCES:
        for file in sorted((package / folder_name).rglob("*")):
            if file.suffix in (".py", ".npz"):
                digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    facts = (sys.version, numba.__version__, llvmlite.__version__, cpu_name(), *sorted(compiled_for()))
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()


def _forget(place: Path, mine: Path) -> None:
    """Remove the folders that were not used for longest."""
    with contextlib.suppress(OSError):
        others = [path for path in place.iterdir() if path != mine and len(path.name) == len(mine.name)]
        others.sort(key=lambda path: path.stat().st_mtime)
        for path in others[: -(GENERATIONS - 1)]:
            shutil.rmtree(path, ignore_errors=True)


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SEAL).digest()


def _serial() -> Any:
    """Numba's own way to write and read compiled functions; it needs nothing of its instance."""
    return CompileResultCacheImpl.__new__(CompileResultCacheImpl)
