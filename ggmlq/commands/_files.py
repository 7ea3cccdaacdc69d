"""Files as a command line names them: several, and patterns that no shell has expanded."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from ..errors import GGMLQError, GGUFNotFoundError


def expanded(names: list[str]) -> list[str]:
    """The files behind names: plain names as they are, patterns (``*``, ``?``, ``[…]``) expanded and sorted.

    A split model stands once, for its first part.
    """
    paths: list[str] = []
    for name in names:
        if "://" in name or os.path.exists(name) or not glob.has_magic(name):
            paths.append(name)
            continue
        fitting = sorted(glob.glob(name, recursive=True))
        if not fitting:
            raise GGUFNotFoundError(
                f"{name}: no file fits this pattern in {os.getcwd()}; look there, or name the file"
            )
        paths += fitting
    return paths if len(paths) < 2 else list(_once(paths))


def _once(paths: list[str]) -> Iterator[str]:
    from ..gguf.file import paths_of_set

    earlier: set[str] = set()
    for path in paths:
        try:
            parts = paths_of_set(path)
        except GGMLQError:  # said when the file is opened
            parts = [path]
        if not earlier.intersection(parts):
            yield path
        earlier.update(parts)
