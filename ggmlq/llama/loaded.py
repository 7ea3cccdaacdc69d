"""Checks that the libraries of ggml and llama.cpp in this process belong to the build that the user named.

A library that is copied out of its build keeps the path of that build (RUNPATH), and the loader takes its
neighbours from there. Then another build than the named one would be judged.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import UnsupportedError
from .files import NAME, PLACES, VARIABLE, Build

ALSO = (
    f"{VARIABLE}_ALSO"  # folders whose libraries belong to any build, with colons (Windows: ;) between them
)
LLAMA = re.compile(r"(?:lib)?llama(?:\.\d+)*\.(?:so|dylib|dll)(?:\.\d+)*$")
MAPS = Path("/proc/self/maps")


def libraries(build: Build) -> list[Path]:
    """Real paths of the files of ggml and llama.cpp in this process, sorted; on Linux."""
    if not MAPS.exists():
        return []
    fields = (line.split(maxsplit=5) for line in MAPS.read_text(errors="replace").splitlines())
    paths = dict.fromkeys(Path(line[5].removesuffix(" (deleted)")) for line in fields if len(line) == 6)
    parts = {path.resolve() for path in build.parts.values()}
    return [
        path for path in sorted(paths) if NAME.match(path.name) or LLAMA.match(path.name) or path in parts
    ]


def homes(build: Build) -> list[Path]:
    """Real folders whose libraries belong to a build.

    The named one with all below it; where the files of the build lie, also if they are links; and beside a
    folder lib or bin the other places of the same build or prefix.
    """
    named = build.named or build.folder
    folders = [named if named.is_dir() else named.parent, *(path.parent for path in build.parts.values())]
    folders += [path.resolve().parent for path in build.parts.values()]
    for folder in dict.fromkeys(folders):
        for place in PLACES[1:]:
            if folder.resolve().parts[-place.count("/") - 1 :] == tuple(place.split("/")):
                prefix = folder.resolve().parents[place.count("/")]
                folders += [prefix / other for other in PLACES[1:]]
    also = [Path(folder).expanduser() for folder in os.environ.get(ALSO, "").split(os.pathsep) if folder]
    return list(dict.fromkeys(folder.resolve() for folder in [*folders, *also]))


def checked(build: Build, *others: Path) -> list[Path]:
    """The loaded libraries; an error where one lies neither in the build nor beside ``others``."""
    loaded = libraries(build)
    allowed = [*homes(build), *(path.resolve().parent for path in others)]
    strangers = [path for path in loaded if not any(path.is_relative_to(folder) for folder in allowed)]
    if strangers:
        paths = ", ".join(map(str, strangers))
        folder, other = build.folder.absolute(), strangers[0].parent
        raise UnsupportedError(
            f"libggml: {build.named or build.folder} has loaded {paths}, which lies outside of it: a library "
            "that is copied out of its build looks for its neighbours there (RUNPATH), and that build would "
            f"be judged. Name it instead, or have the copies come first with LD_LIBRARY_PATH={folder}; if "
            f"both belong together, say so with {ALSO}={other}"
        )
    return loaded


def listed(paths: list[Path]) -> str:
    """The paths in few words: files by folder."""
    folders: dict[Path, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path.name)
    return "; ".join(f"{folder}: {', '.join(sorted(names))}" for folder, names in folders.items())
