"""Packs: files of compiled kernels that come with the package, the read-only part of the store.

A pack holds the kernels of a rung or of a room for one machine, whose name is that of its folder. It is a
line of JSON, then the code, then a digest of all before:

    {"pack": "sm_90/linear.r13_gemv", "compilers": "numba 0.68.1, …", "chunks": [[0, 90112], …],
     "kernels": {"ggmlq.cuda.linear.r13_gemv.kernel(…)": ["<key>", 0, 24480, 20864], …}}

Kernels that are alike lie side by side and are compressed together, in chunks of about two megabytes:
one is unpacked in 6 to 13 ms. A number of a kernel's entry is its chunk, the next two are its place and size
there.
A pack that is damaged, or of another machine, is not used: a warning says so, and its kernels are compiled.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import warnings
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

SUFFIX = ".pack"
SEAL = 16  # bytes of the digest at the end
CHUNK = 1 << 21  # bytes of code that are compressed together


class Pack(NamedTuple):
    """A pack, read up to its code."""

    path: Path
    compilers: str
    kernels: dict[str, list[Any]]  # by origin: key, chunk, first byte, size
    chunks: tuple[tuple[int, int], ...]  # place in the file and size

    def holds(self, origin: str, key: str) -> bool:
        """True where the pack has a kernel's code of today's sources; nothing is unpacked."""
        return bool(self.kernels.get(origin, [""])[0] == key)

    def load(self, origin: str, key: str) -> bytes | None:
        """A kernel's code; None where it is not there, or of other sources."""
        if not self.holds(origin, key):
            return None
        _, number, first, size = self.kernels[origin]
        return _unpacked(self.path, *self.chunks[number])[first : first + size]


@cache
def opened(path: Path) -> Pack | None:
    """A pack; None where there is none, or one that cannot be used."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return _read(path, content)
    except (ValueError, LookupError, TypeError) as error:
        warnings.warn(
            f"{path} is not used: {error}; its kernels are compiled when first used, or install ggmlq again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _read(path: Path, content: bytes) -> Pack:
    if seal(content[:-SEAL]) != content[-SEAL:]:
        raise ValueError("the file is damaged")
    line, _, _ = content.partition(b"\n")
    header = json.loads(line)
    if header["pack"] != name_of(path):
        raise ValueError(f"it is the pack {header['pack']}, not {name_of(path)}")
    start = len(line) + 1
    chunks = tuple((start + first, size) for first, size in header["chunks"])
    return Pack(path, header["compilers"], header["kernels"], chunks)


def name_of(path: Path) -> str:
    """The name of a pack: its machine and its rung or room."""
    return f"{path.parent.name}/{path.stem}"


def seal(content: bytes) -> bytes:
    """The digest that a pack ends with."""
    return hashlib.blake2b(content, digest_size=SEAL).digest()


@lru_cache(8)
def _unpacked(path: Path, first: int, size: int) -> bytes:
    """The code of a chunk; of a few, because a product asks for several kernels."""
    with path.open("rb") as file:
        file.seek(first)
        return lzma.decompress(file.read(size), lzma.FORMAT_XZ)


def examine(prebuilt: Path, machine: str) -> dict[str, Any]:
    """A report on the packs of a machine: their number, kernels, bytes, compilers and a digest of all."""
    paths = sorted((prebuilt / machine).glob(f"*{SUFFIX}"))
    usable = [pack for path in paths if (pack := opened(path)) is not None]
    digest = hashlib.blake2b(b"".join(path.read_bytes()[-SEAL:] for path in paths), digest_size=8)
    return {
        "machine": machine,
        "packs": len(usable),
        "kernels": sum(len(pack.kernels) for pack in usable),
        "bytes": sum(path.stat().st_size for path in paths),
        "compilers": sorted({pack.compilers for pack in usable}),
        "digest": digest.hexdigest(),
        "refused": [str(path) for path in paths if opened(path) is None],
    }
