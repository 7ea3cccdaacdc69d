"""Packs of compiled kernels as files: what they hold, what is stale, and how they are written."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ggmlq.base.writing import write_whole
from ggmlq.formats import FORMATS
from ggmlq.store import reach, store
from ggmlq.store.origin import Origin, described
from ggmlq.store.store import CHUNK, SUFFIX, Pack, key_by_name, key_of

LEVEL = 9 | lzma.PRESET_EXTREME
# The best filters for text, for instructions of 16 bytes (3 % less), and for those of any length (1 %).
FILTERS = (
    {"lc": 3, "lp": 0, "pb": 2}, {"lc": 1, "lp": 3, "pb": 4}, {"lc": 0, "lp": 4, "pb": 4},
    {"lc": 4, "lp": 0, "pb": 0}, {"lc": 0, "lp": 2, "pb": 2},
)  # fmt: skip


class Wanted(NamedTuple):
    """A kernel, and the machine that its code is for, which is the name of a folder of packs."""

    origin: Origin
    machine: str

    @property
    def path(self) -> Path:
        """The pack that it belongs in, below a device's folder of packs."""
        return Path(self.machine) / f"{self.origin.pack}{SUFFIX}"

    def __str__(self) -> str:
        return f"{self.machine}: {self.origin}"


def fresh_code(prebuilt: Path, kernels: Iterable[Wanted]) -> dict[Wanted, bytes]:
    """The code of kernels whose sources have not changed since their packs were written."""
    code = {}
    for kernel in kernels:
        pack = opened(prebuilt / kernel.path)
        key = pack and key_of(kernel.origin, kernel.machine, pack.compilers)
        content = pack.load(str(kernel.origin), key) if pack and key else None
        if content is not None:
            code[kernel] = content
    return code


class Held(NamedTuple):
    """A kernel in a pack."""

    pack: Pack
    name: str  # of its origin

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats among its arguments."""
        arguments = self.name.partition("(")[2].removesuffix(")").split(", ")
        return tuple(word for word in arguments if word in FORMATS)

    @property
    def is_stale(self) -> bool:
        """True where it was compiled from other sources than today's."""
        key = key_by_name(self.name, self.formats, self.pack.path.parent.name, self.pack.compilers)
        return not (key and self.pack.holds(self.name, key))

    def __str__(self) -> str:
        return f"{self.pack.path.parent.name}: {self.name}"


def held(prebuilt: Path) -> Iterator[Held]:
    """All kernels in packs."""
    for path in sorted(prebuilt.glob(f"*/*{SUFFIX}")):
        if (pack := opened(path)) is not None:
            yield from (Held(pack, name) for name in pack.kernels)


def write(prebuilt: Path, code: Mapping[Wanted, bytes], compilers: str) -> None:
    """Write packs of this code; a pack of the same kernels stays as it is, packs without a kernel go."""
    groups: dict[Path, dict[Origin, bytes]] = {}
    for kernel, content in code.items():
        groups.setdefault(kernel.path, {})[kernel.origin] = content
    stale = [path for path, kernels in groups.items() if not _is_written(prebuilt / path, kernels)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # LZMA runs without Python's lock
        contents = threads.map(lambda path: packed(path, groups[path], compilers), stale)
        for path, content in zip(stale, contents, strict=True):
            replace(prebuilt / path, content)
    opened.cache_clear()
    for path in prebuilt.glob(f"*/*{SUFFIX}"):
        if path.relative_to(prebuilt) not in groups:
            path.unlink()


def _is_written(path: Path, kernels: Mapping[Origin, bytes]) -> bool:
    """True where a pack holds just these kernels of today's sources, in pieces of today's size."""
    pack = opened(path)
    if pack is None or {*map(str, kernels)} != {*pack.kernels}:
        return False
    if len(pack.chunks) != len(list(_chunks(kernels))):
        return False
    return all(pack.holds(str(o), key_of(o, path.parent.name, pack.compilers) or "") for o in kernels)


def packed(path: Path, kernels: Mapping[Origin, bytes], compilers: str) -> bytes:
    """A pack: the same bytes for the same code and sources."""
    chunks, body = [], b""
    entries: dict[str, list[Any]] = {}
    for number, chunk in enumerate(_chunks(kernels)):
        first = 0
        for origin in chunk:
            size = len(kernels[origin])
            entries[str(origin)] = [key_of(origin, path.parent.name, compilers), number, first, size]
            first += size
        content = _compressed(b"".join(kernels[origin] for origin in chunk))
        chunks.append([len(body), len(content)])
        body += content
    facts = {"pack": store.name_of(path), "compilers": compilers, "chunks": chunks, "kernels": entries}
    content = json.dumps(facts, separators=(",", ":")).encode() + b"\n" + body
    return content + store.seal(content)


def _chunks(kernels: Mapping[Origin, bytes]) -> Iterator[list[Origin]]:
    """The kernels in pieces of about four megabytes, beside those that differ in the first argument."""
    chunk: list[Origin] = []
    for origin in sorted(kernels, key=lambda o: (o.family, *map(described, (*o.case[1:], *o.case[:1])))):
        if chunk and sum(len(kernels[each]) for each in chunk) + len(kernels[origin]) > CHUNK:
            yield chunk
            chunk = []
        chunk.append(origin)
    if chunk:
        yield chunk


@cache
def _compressed(body: bytes) -> bytes:
    """Code as compressed best; remembered, because packs are written several times on the way."""
    filters = ([{"id": lzma.FILTER_LZMA2, "preset": LEVEL, **way}] for way in FILTERS)
    return min((lzma.compress(body, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=f) for f in filters), key=len)


def write_digests(families: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    """Write reach.json: digests of families of kernels and of the files that they are made of, as of now."""
    files: dict[str, int] = {}
    known = {}
    for family, formats in sorted(set(families)):
        result = reach.reached(family, formats)
        known[reach.name_of(family, formats)] = [
            result.digest,
            [files.setdefault(f, len(files)) for f in result.files],
        ]
    listed = [[path, reach.digest_of(reach.PACKAGE / path)] for path in files]
    text = json.dumps({"files": listed, "families": known}, separators=(",", ":"))
    replace(reach.KNOWN, text.replace('],"', '],\n"').encode() + b"\n")


def replace(path: Path, content: bytes) -> None:
    """Write a file whole, unless it has this content."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


@cache
def opened(path: Path) -> Pack | None:
    """A pack as it is on the disk now."""
    store.opened.cache_clear()
    return store.opened(path) if path.exists() else None
