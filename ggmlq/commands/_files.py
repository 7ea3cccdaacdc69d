"""Files of a command line: names and patterns of several, and those that are written, or there already."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ..base.text import size as shown
from ..errors import GGMLQError, GGUFError, GGUFNotFoundError
from ._plain import name


def expanded(names: list[str]) -> list[str]:
    """The files behind names: plain names as they are, patterns (``*``, ``?``, ``[…]``) expanded and sorted.

    A split model stands once, for its first part.
    """
    paths: list[str] = []
    for one in names:
        if "://" in one or os.path.exists(one) or not glob.has_magic(one):
            paths.append(one)
            continue
        fitting = sorted(glob.glob(one, recursive=True))
        if not fitting:
            raise GGUFNotFoundError(
                f"{one}: no file fits this pattern in {os.getcwd()}; look there, or name the file"
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


def tell(files: Iterable[tuple[str, int]], dry: bool) -> None:
    """Print the files that were written, or would be."""
    for path, nbytes in files:
        print(f"would write {name(path)}, {shown(nbytes)}" if dry else f"wrote {name(path)}")
    if dry:
        print("nothing was written (--dry-run)")


def check_free(
    paths: Iterable[str], force: bool, sources: Iterable[str] = (), read: Iterable[Any] = ()
) -> None:
    """Raise an error where a file of these names exists and is none of ``sources``, or is one of ``read``."""
    existing = [path for path in sources if os.path.exists(path)]
    inputs = [path for path in read if path is not None and os.path.exists(path)]
    for path in paths:
        if os.path.exists(path) and any(os.path.samefile(path, other) for other in inputs):
            raise GGUFError(f"{path} is read here, and would be replaced; name another file to write")
        if not force and os.path.lexists(path):
            if os.path.exists(path) and any(os.path.samefile(path, other) for other in existing):
                continue
            raise GGUFError(
                f"{path} is there already; it would be replaced and its bytes lost; name another file, or "
                "say that you mean it: --force"
            )
