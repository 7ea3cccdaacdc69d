"""Finds the file of libllama for a trace: beside libggml, or in another folder of the same build."""

from __future__ import annotations

from pathlib import Path

from ..errors import MissingDependencyError
from ..llama.files import HOW, PLACES, Build, locate
from ..llama.loaded import LLAMA


def locate_llama(named: str | Path | None = None) -> tuple[Build, Path]:
    """The build that the user named (a folder, a libggml or a libllama), and its libllama."""
    named_path = None if named is None else Path(named).expanduser()
    if named_path is not None and named_path.is_file() and LLAMA.match(named_path.name):
        return _beside(named_path), named_path
    build = locate(named)
    for folder in _folders(build, named_path):
        path = _in(folder)
        if path is not None:
            return build, path
    raise MissingDependencyError(
        f"libllama: {named_path or build.folder} has none (libggml is in {build.folder}); a trace runs a "
        f"model and needs both: name a whole build of llama.cpp, or libllama itself; {HOW}"
    )


def _beside(path: Path) -> Build:
    """The build of ggml that a libllama belongs to; an old libllama may hold all of it."""
    for root in (path.parent, *path.parent.parents[:3]):
        try:
            return locate(root)
        except MissingDependencyError:
            continue
    return Build(path.parent, {"": path}, path)


def _folders(build: Build, named: Path | None) -> list[Path]:
    roots = [build.folder]
    if named is not None:
        root = named if named.is_dir() else named.parent
        roots += [base / place for base in (root / "build", root) for place in PLACES]
    return roots


def _in(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    paths = [path for path in folder.iterdir() if LLAMA.match(path.name) and path.is_file()]
    return min(paths, key=lambda path: (len(path.name), path.name), default=None)
