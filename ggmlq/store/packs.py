"""Packs of compiled code that come with the package, and the check that a pack fits today's sources.

A pack is one file for a format, or for a room of other kernels: a line of JSON, then the code of all its
kernels, compressed together.

    {"files": ["cuda/intrinsics/ptx.py", …],
     "families": {"ggmlq.cuda.linear.r13_gemv.kernel": {"digest": "91ab…", "files": [0, 4, …],
      "cases": {"q4_0, 1, 2": [0, 24480], …}}}}

files.json has digests of files as they were when the packs were last checked. As long as all files of a
family are the same (comparing them takes a millisecond), its code is right. Where a file has changed,
reach.py says whether a part that the kernel is compiled from has; if so, the pack's code is not used, and the
kernel is compiled.

``cuda/machine/served.py`` and ``cpu/machine/served.py`` say which folder of packs serves a machine.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import threading
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..codes import Code
from ..formats import Format
from . import reach

SUFFIX = ".pack"
LARGE = ("panels", "quantize_scaled", "scaled_linear")  # rooms with a pack for each file
FILES = "files.json"  # beside the folders
Header = dict[str, Any]


class Origin(NamedTuple):
    """The origin of a kernel: the name of the function that makes it, and the arguments of that call."""

    family: str
    case: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.family}({self.text})"

    @property
    def text(self) -> str:
        """The case, the same in every process."""
        return ", ".join(
            value.name if isinstance(value, Format | Code) else repr(value) for value in self.case
        )

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that it is made for."""
        return tuple(value.name for value in self.case if isinstance(value, Format))

    @property
    def pack(self) -> str:
        """The name of its pack: its format, or the room of its family; of a large room the file."""
        if self.formats:
            return self.formats[0].lower()
        names = [name.strip("_") for name in self.family.split(".")[1:4]]
        room, file = names[:2] if names[0] == "gru" else names[1:]
        return f"{room}_{file}" if room in LARGE else room


def code(folder: Path, origin: Origin) -> bytes | None:
    """The code of a kernel in a folder of packs, or None."""
    if (place := place_of(folder, origin)) is None:
        return None
    body = place.pack.body()
    return None if body is None else body[place.first : place.first + place.size]


class Place(NamedTuple):
    """The place of a kernel's code."""

    pack: Pack
    first: int
    size: int


def place_of(folder: Path, origin: Origin) -> Place | None:
    """The place of a kernel's code in a folder of packs, or None; nothing is unpacked."""
    pack = opened(folder / f"{origin.pack}{SUFFIX}")
    try:
        family = pack.header["families"].get(origin.family) if pack else None
        place = family and family["cases"].get(origin.text)
        if not pack or not place or not pack.holds(origin.family, origin.formats):
            return None
        return Place(pack, int(place[0]), int(place[1]))
    except (AttributeError, LookupError, TypeError, ValueError):  # a header that was written to
        return None


class Pack:
    """A file of code."""

    def __init__(self, path: Path, header: Header, start: int) -> None:
        self.path, self.header, self._start = path, header, start
        self._held: dict[str, bool] = {}
        self._lock = threading.Lock()

    def holds(self, family: str, formats: tuple[str, ...], package: Path = reach.PACKAGE) -> bool:
        """True while the sources of a family are those that its code was compiled from."""
        if family not in self._held:
            facts, names = self.header["families"][family], self.header["files"]
            recorded = looked_at(self.path.parents[1])
            same = all(digest_of(package / names[i]) == recorded.get(names[i]) for i in facts["files"])
            self._held[family] = same or facts["digest"] == _reached(family, formats, package)
        return self._held[family]

    def body(self) -> bytes | None:
        """All its code; None where the file is damaged."""
        with self._lock:
            try:
                return _unpacked(self.path, self._start)
            except (OSError, lzma.LZMAError):
                return None


@lru_cache(4)
def _unpacked(path: Path, start: int) -> bytes:
    """The code of a pack; of a few, because a product asks each for several kernels."""
    return lzma.decompress(path.read_bytes()[start:], lzma.FORMAT_XZ)


def _reached(family: str, formats: tuple[str, ...], package: Path) -> str | None:
    try:
        return reach.reached(family, formats, package).digest
    except (OSError, SyntaxError, ValueError):  # a tree in the middle of a change
        return None


@cache
def digest_of(path: Path) -> str:
    """The digest of a file's bytes."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=10).hexdigest()
    except OSError:
        return "-"


@cache
def looked_at(folders: Path) -> dict[str, str]:
    """Digests of files when packs in some folders were last held against the sources."""
    try:
        digests = json.loads((folders / FILES).read_bytes())
    except (OSError, ValueError):
        return {}
    return digests if isinstance(digests, dict) else {}


@cache
def opened(path: Path) -> Pack | None:
    """A pack; None where there is none, or nothing that can be read."""
    try:
        with path.open("rb") as file:
            line = file.readline()
            header = json.loads(line)
    except (OSError, ValueError):
        return None
    return Pack(path, header, len(line)) if isinstance(header, dict) and "families" in header else None
